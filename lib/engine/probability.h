// Logits as probabilities, in double.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"

namespace hetero::engine {

// log of the sum of exp(logits). A logit that is not finite: bad_input naming the token.
Result<double> log_sum_exp(std::span<const float> logits);

// How far two predictions of the next token are apart.
struct LogitDifference {
    double max_abs_dp = 0;  // max over the vocabulary of |p_b - p_a|
    double kl = 0;          // KL(a || b), nats
    double max_abs_dlogit = 0;
    bool top1_equal = true;
};
// Both of one size. Logits that are not finite: bad_input; the message begins with `name_a` or `name_b`.
Result<LogitDifference> compare_logits(std::span<const float> a, std::span<const float> b, std::string_view name_a,
                                       std::string_view name_b);

// Index of the largest logit, the smallest among equals. Not empty.
[[nodiscard]] std::int32_t argmax(std::span<const float> logits) noexcept;

}  // namespace hetero::engine
