// Chooses the next token.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/likeliest.h"

namespace hetero::engine {

struct SamplingOptions {
    double temperature = 0;   // 0: greedy, the smallest id among equals
    std::uint32_t top_k = 0;  // 0: off
    double top_p = 1, min_p = 0;
    double repetition_penalty = 1;  // over all tokens seen: l > 0 ? l / p : l * p (CTRL, arXiv 1909.05858)
    std::uint64_t seed = 0;
};
Status check(const SamplingOptions& options);  // usage errors name the option and its range

// The uniform number in [0, 1) that decides the token at `position`: output `position` of SplitMix64
// (https://doi.org/10.1145/2714064.2660195) started from the mixed seed. It depends on nothing else, so that a
// continued sequence draws what one long run would have drawn.
[[nodiscard]] double uniform_at(std::uint64_t seed, std::uint64_t position) noexcept;

// Order: penalty, temperature, top-k, top-p, min-p, draw. Ties at the edge of top-k and top-p go to the smaller id.
// top-p keeps the fewest tokens whose share reaches it, min-p those with p >= min_p * the largest p.
class Sampler {
public:
    explicit Sampler(const SamplingOptions& options) : options_(options) {}

    // `seen`: all tokens before the one to choose, prompt and generated; their number is the position drawn for.
    // Logits that hold NaN or +infinity, or nothing finite: bad_input.
    Result<std::int32_t> next(std::span<const float> logits, std::span<const std::int32_t> seen);

    // Of which tokens next() can mostly choose; none: it needs all logits.
    [[nodiscard]] LikeliestWanted wanted() const noexcept;
    // What next() would choose from all logits, none of them NaN or +infinity; nothing where the likeliest, as many as
    // are wanted, do not decide that.
    std::optional<std::int32_t> next(const Likeliest& likeliest, std::span<const std::int32_t> seen);

private:
    Status penalize(std::span<const std::int32_t> seen);
    bool penalize_candidates(std::span<const std::int32_t> seen);
    [[nodiscard]] float penalized(float logit) const;
    void keep_top_k();
    void keep_top_p();
    bool keep_top_p_of(double total);
    void keep_min_p();
    [[nodiscard]] std::int32_t draw(std::int32_t best, std::uint64_t position) const;
    [[nodiscard]] double weight(const Candidate& candidate) const;  // relative to the most likely token's 1

    SamplingOptions options_;
    std::vector<float> logits_;    // [vocab], after the penalty
    std::vector<bool> penalized_;  // [vocab], or [candidate]
    std::vector<Candidate> candidates_;
    float max_logit_ = 0;
};

}  // namespace hetero::engine
