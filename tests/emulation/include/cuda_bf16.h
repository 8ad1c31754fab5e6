#pragma once
#include <cstdint>

#include "kernels/common/half.h"

struct __nv_bfloat16 {
    std::uint16_t bits;
};
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return {bits}; }
inline float __bfloat162float(__nv_bfloat16 x) { return hetero::kernels::bf16_to_f32(x.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {hetero::kernels::f32_to_bf16(x)}; }
