// What block formats share: 16-bit scales, and the walk over the blocks of a row.
#pragma once
#include <cmath>
#include <cstring>

#include "kernels/api/ops.h"
#include "quant/weights/weight_format.h"

namespace hetero::quant {

inline std::uint16_t to_half(float value) {
    std::uint16_t half = 0;
    kernels::ops().f32_to_f16(&value, &half, 1);
    return half;
}

inline float from_half(std::uint16_t half) {
    float value = 0;
    kernels::ops().f16_to_f32(&half, &value, 1);
    return value;
}

// False where it overflows.
inline bool store_half(float value, std::byte* out) {
    const std::uint16_t half = to_half(value);
    std::memcpy(out, &half, sizeof half);
    return (half & 0x7c00U) != 0x7c00U;
}

// 1 / d as ggml takes it: 0 for 0. Below 2^-128 the reciprocal is infinite; such a scale is 0 in 16 bits, so the codes
// do not matter, but they must not come from infinities.
inline float reciprocal(float d) {
    const float inverse = d != 0 ? 1.0F / d : 0.0F;
    return std::isfinite(inverse) ? inverse : 0.0F;
}

// `encode(x, out)` stores one block of finite values and returns false where a scale overflows.
template <class Encode>
RowProblem encode_blocks(std::span<const float> row, kernels::DType dtype, std::byte* out, const Encode& encode) {
    const kernels::DTypeInfo& info = kernels::dtype_info(dtype);
    for (std::size_t begin = 0; begin < row.size(); begin += info.block_elems, out += info.block_bytes) {
        const float* x = row.data() + begin;
        for (std::size_t i = 0; i < info.block_elems; ++i) {
            if (!std::isfinite(x[i])) return {RowProblem::Kind::not_finite, begin + i};
        }
        if (!encode(x, out)) return {RowProblem::Kind::overflow, begin};
    }
    return {};
}

}  // namespace hetero::quant
