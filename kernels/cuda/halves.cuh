// The two types of 16 bits that matrix units multiply, by the hardware's conversions. The same numbers as
// common/half.h.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

template <class Half>
inline constexpr bool is_f16 = std::is_same_v<Half, __half>;

template <class Half>
__device__ inline float widen(std::uint16_t bits) {
    if constexpr (is_f16<Half>)
        return __half2float(__ushort_as_half(bits));
    else
        return __bfloat162float(__ushort_as_bfloat16(bits));
}
// Nearest even.
template <class Half>
__device__ inline std::uint16_t narrow(float x) {
    if constexpr (is_f16<Half>)
        return __half_as_ushort(__float2half_rn(x));
    else
        return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
