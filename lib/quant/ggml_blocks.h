// Rows of 32-element blocks in ggml's layout, to the bits of its reference quantizers (quantize_row_q8_0_ref and its
// like in ggml-quants.c, https://github.com/ggml-org/ggml): scales from f32, codes from the unrounded scale's
// reciprocal, the scale stored as f16. The inverse is kernels::ops().dequantize.
#pragma once
#include <cmath>
#include <cstddef>

#include "kernels/api/dtype.h"

namespace hetero::quant {

inline constexpr std::size_t ggml_block = 32;  // elements

// Stores an f16. False where it is infinite: `value` is beyond f16.
[[nodiscard]] bool store_half(float value, std::byte* out) noexcept;

// 1 / scale as ggml takes it: 0 for 0. Below 2^-128 the reciprocal is infinite; such a scale is 0 in f16, so the codes
// do not matter, but they must not come from infinities.
[[nodiscard]] inline float reciprocal(float scale) noexcept {
    const float inverse = scale != 0 ? 1 / scale : 0;
    return std::isfinite(inverse) ? inverse : 0;
}

// n values, whole blocks, finite, to dtype_bytes(type, n) bytes; type is q8_0, q4_0 or q4_1. False where a scale or
// minimum is beyond f16; what `out` then holds is unspecified.
[[nodiscard]] bool quantize_ggml_blocks(kernels::DType type, const float* x, std::size_t n, std::byte* out) noexcept;

}  // namespace hetero::quant
