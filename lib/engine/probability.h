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
    double max_abs_dp = 0;    // max over the vocabulary of |p_b - p_a|
    std::int32_t worst = 0;   // the first token where it is reached
    double p_a = 0, p_b = 0;  // of that token
    double kl = 0;            // KL(a || b), nats
    double max_abs_dlogit = 0;
    std::int32_t top_a = 0, top_b = 0;    // most likely tokens
    double log_sum_a = 0, log_sum_b = 0;  // log of the sum of exp(logits): -log p of a token is this less its logit
    [[nodiscard]] bool top1_equal() const noexcept { return top_a == top_b; }
};
// Both of one size. Logits that are not finite: bad_input; the message begins with `name_a` or `name_b`.
Result<LogitDifference> compare_logits(std::span<const float> a, std::span<const float> b, std::string_view name_a,
                                       std::string_view name_b);

// Index of the largest logit, the smallest among equals. Not empty.
[[nodiscard]] std::int32_t argmax(std::span<const float> logits) noexcept;

}  // namespace hetero::engine
