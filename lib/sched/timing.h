// How long the two stages take on one instance, as coefficients that a cost model or a fit of measurements supplies.
// All times in seconds.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hetero::sched {

struct PrefillTiming {
    double overhead_s = 0;    // of every batch; fits of measurements have the reading of weights in it
    double per_token_s = 0;   // products with weights, and what is exchanged between devices
    double per_pair_s = 0;    // attention: of each of the n^2 - p^2 pairs of a prompt of n tokens, p of them cached
    double floor_s = 0;       // reading all weights once: no batch is faster
    double chunk_tokens = 0;  // computed at once, with overhead and floor of their own; 0: all

    [[nodiscard]] double seconds(double tokens, double pairs) const noexcept {
        const double n = chunks(tokens);
        return std::max(n * floor_s, n * overhead_s + tokens * per_token_s + pairs * per_pair_s);
    }
    [[nodiscard]] double chunks(double tokens) const noexcept {
        return chunk_tokens > 0 ? std::max(1.0, std::ceil(tokens / chunk_tokens)) : 1;
    }
};

// A step is bound by what it reads (weights, KV) or by what it computes.
struct DecodeTiming {
    double overhead_s = 0;      // of every step
    double per_sequence_s = 0;  // whatever bounds the step: sampling, exchange between devices
    // Reading the weights that a batch touches, [batch - 1]; of mixtures of experts more with more sequences. A larger
    // batch takes the last entry. Not empty.
    std::vector<double> weights_s{0.0};
    double read_per_context_token_s = 0;
    double compute_per_sequence_s = 0, compute_per_context_token_s = 0;

    [[nodiscard]] double weights(std::size_t batch) const noexcept {
        return weights_s[std::min(batch, weights_s.size()) - 1];
    }
    // `context_tokens`: of all sequences together. batch > 0.
    [[nodiscard]] double seconds(std::size_t batch, double context_tokens) const noexcept {
        const auto n = static_cast<double>(batch);
        const double read = weights(batch) + context_tokens * read_per_context_token_s;
        const double compute = n * compute_per_sequence_s + context_tokens * compute_per_context_token_s;
        return overhead_s + n * per_sequence_s + std::max(read, compute);
    }
    // What a step adds to a batch of prompts that is processed together with it: the weights are read anyway.
    [[nodiscard]] double seconds_beside_prefill(std::size_t batch, double context_tokens) const noexcept {
        const auto n = static_cast<double>(batch);
        return n * (per_sequence_s + compute_per_sequence_s) +
               context_tokens * std::max(read_per_context_token_s, compute_per_context_token_s);
    }
};

}  // namespace hetero::sched
