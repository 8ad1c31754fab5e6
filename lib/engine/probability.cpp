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

std::int32_t argmax(std::span<const float> logits) noexcept {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace hetero::engine
