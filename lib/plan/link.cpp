#include "plan/link.h"

#include <limits>

namespace hetero::plan {

double break_even_bytes_per_s(double ratio, double quantize_bytes_per_s, double dequantize_bytes_per_s) noexcept {
    const auto inverse = [](double rate) { return rate > 0 ? 1 / rate : 0; };
    const double seconds_per_byte = inverse(quantize_bytes_per_s) + inverse(dequantize_bytes_per_s);
    if (ratio >= 1) return 0;
    return seconds_per_byte > 0 ? (1 - ratio) / seconds_per_byte : std::numeric_limits<double>::infinity();
}

double hiding_bytes_per_s(double kv_bytes_per_token, double prefill_tokens_per_s) noexcept {
    return kv_bytes_per_token * prefill_tokens_per_s;
}

}  // namespace hetero::plan
