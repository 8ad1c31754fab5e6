// Rows of 32-element blocks in ggml's layout, to the bits of its reference quantizers (quantize_row_q8_0_ref and its
// like in ggml-quants.c, https://github.com/ggml-org/ggml): scales from f32, codes from the unrounded scale's
// reciprocal, the scale stored as f16. The inverse is kernels::ops().dequantize.
#pragma once
#include <cstddef>

#include "kernels/api/dtype.h"

namespace hetero::quant {

inline constexpr std::size_t ggml_block = 32;  // elements

// n values, whole blocks, finite, to dtype_bytes(type, n) bytes; type is q8_0, q4_0 or q4_1. False where a scale or
// minimum is beyond f16; what `out` then holds is unspecified.
[[nodiscard]] bool quantize_ggml_blocks(kernels::DType type, const float* x, std::size_t n, std::byte* out) noexcept;

}  // namespace hetero::quant
