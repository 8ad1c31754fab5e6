#include "engine/probability.h"

#include <algorithm>
#include <cmath>

namespace hetero::engine {

Result<double> log_sum_exp(std::span<const float> logits) {
    double largest = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if (!std::isfinite(logits[i])) {
            return fail(Errc::bad_input, "the logit of token {} is {}", i,
                        std::isnan(logits[i]) ? "not a number" : "infinite");
        }
        largest = std::max(largest, static_cast<double>(logits[i]));
    }
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - largest);
    return largest + std::log(sum);
}

Result<LogitDifference> compare_logits(std::span<const float> a, std::span<const float> b, std::string_view name_a,
                                       std::string_view name_b) {
    auto total_a = log_sum_exp(a), total_b = log_sum_exp(b);
    if (!total_a) return fail_with(total_a.error(), name_a);
    if (!total_b) return fail_with(total_b.error(), name_b);
    LogitDifference out;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double log_a = a[i] - *total_a, log_b = b[i] - *total_b;
        const double p_a = std::exp(log_a), p_b = std::exp(log_b);
        if (const double dp = std::fabs(p_b - p_a); dp > out.max_abs_dp || i == 0) {
            out.max_abs_dp = dp;
            out.worst = static_cast<std::int32_t>(i);
            out.p_a = p_a;
            out.p_b = p_b;
        }
        out.kl += p_a * (log_a - log_b);
        out.max_abs_dlogit = std::max(out.max_abs_dlogit, std::fabs(static_cast<double>(b[i]) - a[i]));
    }
    out.kl = std::max(out.kl, 0.0);  // never negative but for rounding
    out.top_a = argmax(a);
    out.top_b = argmax(b);
    out.log_sum_a = *total_a;
    out.log_sum_b = *total_b;
    return out;
}

std::int32_t argmax(std::span<const float> logits) noexcept {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace hetero::engine
