// The likeliest tokens of a position: mostly enough to choose the next one, and little beside all its logits.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"

namespace hetero::engine {

struct Candidate {
    float logit;
    std::int32_t id;
};

struct Likeliest {
    std::span<const Candidate> tokens;  // by falling logit, of equals the smaller id first; not empty
    double total = 0;  // sum over the vocabulary of exp((logit - largest) / temperature), relative error <= 1e-9
};

// What is looked for.
struct LikeliestWanted {
    static constexpr std::uint32_t most = 256;
    std::uint32_t count = 0;  // of tokens, or as many as the vocabulary has; 0: all logits
    double temperature = 0;   // of `total`; 0: it is 0
};

// Whether they were enough; else all logits of the position follow.
using LikeliestFn = std::function<Result<bool>(std::size_t index, const Likeliest& likeliest)>;

}  // namespace hetero::engine
