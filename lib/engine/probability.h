// Logits as probabilities, in double.
#pragma once
#include <cstdint>
#include <span>

#include "base/result.h"

namespace hetero::engine {

// log of the sum of exp(logits). A logit that is not finite: bad_input naming the token.
Result<double> log_sum_exp(std::span<const float> logits);

// Index of the largest logit, the smallest among equals. Not empty.
[[nodiscard]] std::int32_t argmax(std::span<const float> logits) noexcept;

}  // namespace hetero::engine
