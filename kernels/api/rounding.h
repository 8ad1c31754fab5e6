// binary16 (IEEE 754) in single values, with directed rounding. Bulk conversion is kernels::ops().
#pragma once
#include "kernels/common/half.h"

namespace hetero::kernels {

inline constexpr double f16_max = 65504;
inline constexpr std::uint16_t f16_infinity_bits = 0x7C00;

// The value of f16 bits. Exact.
[[nodiscard]] inline float f16_value(std::uint16_t bits) noexcept { return f16_to_f32(bits); }

// The smallest f16 that is >= x, for finite x >= 0; +infinity (7C00) where x > 65504. Never 0 for x > 0.
[[nodiscard]] HETERO_HD inline std::uint16_t f16_round_up(double x) noexcept {
    if (x > f16_max) return f16_infinity_bits;
    if (x < 0x1p-14) return static_cast<std::uint16_t>(::ceil(x * 0x1p24));  // the scaling is exact
    constexpr int dropped = 52 - 10;
    const std::uint64_t bits = bits_as<std::uint64_t>(x) + ((1ULL << dropped) - 1);
    return static_cast<std::uint16_t>((bits >> dropped) - ((1023ULL - 15) << 10));
}

// The largest f16 that is <= x, for finite x; -infinity (FC00) where x < -65504, 65504 where x is larger. Zero is +0.
[[nodiscard]] HETERO_HD inline std::uint16_t f16_round_down(double x) noexcept {
    if (x < 0) return static_cast<std::uint16_t>(f16_round_up(-x) | 0x8000U);
    if (x >= f16_max) return f16_infinity_bits - 1;
    if (x < 0x1p-14) return static_cast<std::uint16_t>(x * 0x1p24);
    constexpr int dropped = 52 - 10;
    return static_cast<std::uint16_t>((bits_as<std::uint64_t>(x) >> dropped) - ((1023ULL - 15) << 10));
}

}  // namespace hetero::kernels
