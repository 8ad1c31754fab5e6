// Writing a value where a DeviceOutput says.
#pragma once
#include "kernels/common/half.h"
#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

// Nearest even.
__device__ inline std::uint16_t to_half(float value, DType type) {
    return type == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
}

__device__ inline void store(const DeviceOutput& out, std::size_t token, std::size_t column, float value) {
    if (out.f32 != nullptr) out.f32[token * out.f32_stride + column] = value;
    if (out.half != nullptr) out.half[token * out.half_stride + column] = to_half(value, out.half_type);
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
