// Single values of a block of the KV state.
#pragma once
#include <cstring>

#include "kernels/api/ops.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {

inline float value_at(const KvValues& x, std::size_t row, std::size_t i) {
    const std::size_t at = row * x.stride + i;
    const auto* bytes = static_cast<const std::byte*>(x.data);
    if (x.type == DType::f16) return f16_to_f32(load<std::uint16_t>(bytes + 2 * at));
    if (x.type == DType::bf16) return bf16_to_f32(load<std::uint16_t>(bytes + 2 * at));
    return load<float>(bytes + 4 * at);
}

// Stores `value` as x.type, and gives what that is.
inline float store_at(const KvOutput& x, std::size_t row, std::size_t i, float value) {
    const std::size_t at = row * x.stride + i;
    auto* bytes = static_cast<std::byte*>(x.data);
    if (x.type == DType::f32) {
        std::memcpy(bytes + 4 * at, &value, 4);
        return value;
    }
    const std::uint16_t bits = x.type == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
    std::memcpy(bytes + 2 * at, &bits, 2);
    return x.type == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

inline void raise(float* error, float found) {
    if (error != nullptr && found > *error) *error = found;
}

}  // namespace hetero::kernels::ref
