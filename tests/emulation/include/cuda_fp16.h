#pragma once
#include <cstdint>

#include "kernels/common/half.h"

struct __half {
    std::uint16_t bits;
};
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline float __half2float(__half x) { return hetero::kernels::f16_to_f32(x.bits); }
inline __half __float2half_rn(float x) { return {hetero::kernels::f32_to_f16(x)}; }
