// Values of K or V of a state, [token][head][head_dim].
#pragma once
#include "kernels/common/codes.h"
#include "kernels/cuda/kv_rows.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

struct Values {
    DType type;
    int n_tokens, n_heads, head_dim;
    [[nodiscard]] __host__ __device__ std::size_t row_bytes(KvCodes codes) const {
        return static_cast<std::size_t>(is_paired(codes) ? (head_dim + 1) / 2 : head_dim);
    }
    [[nodiscard]] __host__ __device__ std::size_t heads() const {
        return static_cast<std::size_t>(n_tokens) * static_cast<std::size_t>(n_heads);
    }
};

__device__ inline float value_at(DType type, const void* x, std::size_t i) {
    if (type == DType::f32) return static_cast<const float*>(x)[i];
    const std::uint16_t bits = static_cast<const std::uint16_t*>(x)[i];
    return type == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}
// False where it is not finite then.
__device__ inline bool put_value(DType type, void* x, std::size_t i, float value) {
    if (type == DType::f32) {
        static_cast<float*>(x)[i] = value;
        return is_finite(value);
    }
    const std::uint16_t bits = type == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
    static_cast<std::uint16_t*>(x)[i] = bits;
    return is_finite(type == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits));
}

// kv_widths.cu: codes of unlike widths. What is null here the kernels take.
[[nodiscard]] const char* widths_refusal(const DeviceCodec& codec);
DeviceFault quantize_widths(DeviceStream stream, const DeviceCodec& codec, const Values& values, const void* x,
                            const DeviceCodes& to, unsigned long long* place);
DeviceFault dequantize_widths(DeviceStream stream, const DeviceCodec& codec, const ConstDeviceCodes& from,
                              const Values& values, void* x, unsigned long long* place);
DeviceFault error_of_widths(DeviceStream stream, const DeviceCodec& codec, const ConstDeviceCodes& from,
                            const Values& values, const void* x, unsigned* error);

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
