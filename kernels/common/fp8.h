// 8-bit floats (kernels::Fp8) to and from f32.
#pragma once
#include "kernels/api/ops.h"
#include "kernels/common/device_code.h"

namespace hetero::kernels {

struct Fp8Layout {
    int mantissa_bits, bias;
    float largest;
    std::uint8_t nan;  // without sign
    bool negative_zero;
};

HETERO_HD constexpr Fp8Layout fp8_layout(Fp8 format) {
    switch (format) {
        case Fp8::e4m3fnuz:
            return {3, 8, 240, 0x80, false};
        case Fp8::e5m2:
            return {2, 15, 57344, 0x7F, true};
        default:
            return {3, 7, 448, 0x7F, true};
    }
}

// Nearest even; beyond the largest: the largest.
HETERO_HD inline std::uint8_t f32_to_fp8(const Fp8Layout& layout, float value) {
    const auto bits = bits_as<std::uint32_t>(value);
    std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    if (magnitude > 0x7F800000U) return layout.nan;
    const auto largest = bits_as<std::uint32_t>(layout.largest);
    if (magnitude > largest) magnitude = largest;
    const int dropped = 23 - layout.mantissa_bits;
    const auto smallest_normal = static_cast<std::uint32_t>(128 - layout.bias) << 23;
    std::uint32_t code = 0;
    if (magnitude >= smallest_normal) {
        const std::uint32_t odd = magnitude >> dropped & 1U;
        code = (magnitude + (1U << (dropped - 1)) - 1 + odd) >> dropped;
        code -= static_cast<std::uint32_t>(127 - layout.bias) << layout.mantissa_bits;
    } else {  // in units of the smallest subnormal number; the product is exact
        const auto units = static_cast<std::uint32_t>(127 + layout.bias - 1 + layout.mantissa_bits) << 23;
        code =
            static_cast<std::uint32_t>(::nearbyintf(rounded_product(bits_as<float>(magnitude), bits_as<float>(units))));
    }
    const bool sign = bits >> 31 != 0 && (code != 0 || layout.negative_zero);
    return static_cast<std::uint8_t>(code | (sign ? 0x80U : 0U));
}

// x / scale; scale 0: a zero with the sign of x.
HETERO_HD inline std::uint8_t fp8_code(const Fp8Layout& layout, float x, float scale) {
    return f32_to_fp8(layout, scale == 0 ? rounded_product(x, 0.0F) : x / scale);
}

// Exact.
HETERO_HD inline float fp8_to_f32(const Fp8Layout& layout, std::uint8_t code) {
    const std::uint32_t magnitude = code & 127U, sign = static_cast<std::uint32_t>(code & 128U) << 24;
    if (layout.negative_zero ? magnitude == layout.nan : code == layout.nan) return bits_as<float>(0x7FC00000U | sign);
    const std::uint32_t bits = magnitude << (23 - layout.mantissa_bits);
    if (layout.mantissa_bits == 2 && magnitude >= 0x7C) return bits_as<float>(sign | 0x7F800000U | bits);
    // As f32 the exponent is 127 - bias too small, of subnormal numbers likewise.
    const auto power = bits_as<float>(static_cast<std::uint32_t>(254 - layout.bias) << 23);
    return bits_as<float>(sign | bits_as<std::uint32_t>(rounded_product(bits_as<float>(bits), power)));
}
HETERO_HD inline float e4m3fn_to_f32(std::uint8_t code) { return fp8_to_f32(fp8_layout(Fp8::e4m3fn), code); }

}  // namespace hetero::kernels
