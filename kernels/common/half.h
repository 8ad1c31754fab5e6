// IEEE binary16 and bfloat16 to and from binary32, nearest even.
#pragma once
#include "kernels/common/device_code.h"

namespace hetero::kernels {

// NaNs become quiet and keep the rest of their payload, as the hardware's conversions do.
HETERO_HD constexpr float f16_to_f32(std::uint16_t h) {
    const std::uint32_t sign = std::uint32_t{h & 0x8000u} << 16;
    const std::uint32_t exponent = (h >> 10) & 0x1f;
    const std::uint32_t mantissa = h & 0x3ff;
    if (exponent == 0x1f) return bits_as<float>(sign | 0x7f800000u | (mantissa ? 0x400000u : 0u) | mantissa << 13);
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal: exact in f32
        return bits_as<float>(sign | bits_as<std::uint32_t>(magnitude));
    }
    return bits_as<float>(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

HETERO_HD constexpr std::uint16_t f32_to_f16(float value) {
    const auto bits = bits_as<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    std::uint32_t half = 0;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // NaN
    } else if (magnitude >= 0x477ff000u) {
        half = 0x7c00u;  // 65520 and above, the tie included, round to infinity
    } else if (magnitude >= 0x38800000u) {
        const std::uint32_t odd = (magnitude >> 13) & 1;  // normal: drop 13 bits, half to even
        half = (magnitude - (std::uint32_t{127 - 15} << 23) + 0xfffu + odd) >> 13;
    } else if (magnitude >= 0x33000000u) {
        const std::uint32_t shift = 126 - (magnitude >> 23);  // subnormal, a multiple of 2^-24: 14..24 bits are dropped
        const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
        const std::uint32_t odd = (mantissa >> shift) & 1;
        half = (mantissa + (1u << (shift - 1)) - 1 + odd) >> shift;
    }  // below 2^-25: zero
    return static_cast<std::uint16_t>(sign | half);
}

HETERO_HD constexpr float bf16_to_f32(std::uint16_t b) { return bits_as<float>(std::uint32_t{b} << 16); }

HETERO_HD constexpr std::uint16_t f32_to_bf16(float value) {
    const auto bits = bits_as<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // NaN, quiet
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace hetero::kernels
