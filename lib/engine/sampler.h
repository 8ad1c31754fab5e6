// Chooses the next token.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace hetero::engine {

struct SamplingOptions {
    double temperature = 0;         // 0: greedy, the smallest id among equals
    std::uint32_t top_k = 0;        // 0: off
    double top_p = 1, min_p = 0;
    double repetition_penalty = 1;  // over all tokens seen: l > 0 ? l / p : l * p (CTRL, arXiv 1909.05858)
    std::uint64_t seed = 0;
};
Status check(const SamplingOptions& options);  // usage errors name the option and its range

// Order: penalty, temperature, top-k, top-p, min-p, draw. The same seed, options and logits give the same tokens on
// every machine (the generator is fixed: SplitMix64 -> xoshiro256**).
class Sampler {
public:
    explicit Sampler(const SamplingOptions& options);
    // `seen`: prompt and generated tokens. Logits with no finite value: bad_input.
    Result<std::int32_t> next(std::span<const float> logits, std::span<const std::int32_t> seen);

private:
    SamplingOptions options_;
    std::uint64_t state_[4];
    std::vector<std::pair<float, std::int32_t>> candidates_;
};

}  // namespace hetero::engine
