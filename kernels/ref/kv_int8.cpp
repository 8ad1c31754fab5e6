#include <cmath>
#include <limits>

#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {
namespace {

// Nearest integer in [low, high], ties to even; NaN gives low.
int round_clamped(float value, float low, float high) {
    if (!(value > low)) value = low;
    if (value > high) value = high;
    return static_cast<int>(std::nearbyint(value));
}

}  // namespace

void quantize_i8(const float* x, float scale, std::int8_t* q, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
        q[i] = scale == 0 ? std::int8_t{0} : static_cast<std::int8_t>(round_clamped(x[i] / scale, -127, 127));
}

void quantize_u8(const float* x, float scale, float zero, std::uint8_t* q, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
        q[i] = scale == 0 ? std::uint8_t{0} : static_cast<std::uint8_t>(round_clamped((x[i] - zero) / scale, 0, 255));
}

void dequantize_i8(const std::int8_t* q, float scale, float* x, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(q[i]) * scale;
}

void dequantize_u8(const std::uint8_t* q, float scale, float zero, float* x, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(q[i]) * scale + zero;
}

bool min_max(const float* x, std::size_t n, float* min, float* max) {
    float low = x[0], high = x[0];
    for (std::size_t i = 0; i < n; ++i) {
        if (!std::isfinite(x[i])) return false;
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    *min = low;
    *max = high;
    return true;
}

}  // namespace hetero::kernels::ref
