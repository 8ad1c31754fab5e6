// KV state as codes: the scale and zero of a group, and a value to its code and back (hetero-quant(7)).
#pragma once
#include "kernels/api/rounding.h"
#include "kernels/common/device_code.h"
#include "kernels/common/half.h"

namespace hetero::kernels {

struct GroupScale {
    std::uint16_t scale, zero;  // f16
    bool finite;
};

// Ops::group_scales for one group; `min` is read with a zero only, `max` is the largest magnitude without one.
HETERO_HD inline GroupScale group_scale(float min, float max, int levels, bool has_zero) {
    GroupScale group = {0, 0, true};
    double range = max;
    if (has_zero) {
        group.zero = f16_round_down(min);
        group.finite = (group.zero & 0x7FFFU) != f16_infinity_bits;
        range -= static_cast<double>(f16_to_f32(group.zero));
    }
    const bool finite = range <= 0x1.FFFFFFFFFFFFFp1023 && range >= -0x1.FFFFFFFFFFFFFp1023;
    group.scale = finite ? f16_round_up(range / levels) : f16_infinity_bits;
    group.finite = group.finite && group.scale != f16_infinity_bits;
    return group;
}

// rne((x - zero) / scale), within the range of a byte; scale 0: 0.
HETERO_HD inline float integer_code(float x, float scale, float zero, bool is_signed) {
    const float low = is_signed ? -128.0F : 0.0F, high = is_signed ? 127.0F : 255.0F;
    float quotient = scale == 0 ? 0 : rounded_sum(x, -zero) / scale;
    if (quotient < low) quotient = low;
    if (quotient > high) quotient = high;
    return ::nearbyintf(quotient);
}

HETERO_HD inline float coded_value(float code, float scale, float zero) {
    return rounded_sum(rounded_product(code, scale), zero);
}

// Codes of unlike widths (Ops::fill_widths): at most so many bits, and the step of a range with `width` of them.
constexpr int max_width = 12;
HETERO_HD inline float width_step(float range, int width) { return range / static_cast<float>((1 << width) - 1); }

// Ops::quantize_i8 for one value.
HETERO_HD inline std::int8_t i8_code(float x, float scale) {
    float value = scale == 0 ? 0 : x / scale;
    if (!(value > -127)) value = -127;  // NaN, too
    if (value > 127) value = 127;
    return static_cast<std::int8_t>(::nearbyintf(value));
}

// What a Hadamard transform of n values, a power of two, is multiplied with.
HETERO_HD inline float hadamard_factor(std::size_t n) { return static_cast<float>(1 / ::sqrt(static_cast<double>(n))); }

}  // namespace hetero::kernels
