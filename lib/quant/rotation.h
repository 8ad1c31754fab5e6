// Rotation of heads by Hadamard matrices, which spreads outliers over all dimensions of a head: what is quantized is
// y = H x / sqrt(n), and decoding applies the same matrix again, H H = n I. Ashkboos et al., QuaRot,
// https://arxiv.org/abs/2404.00456.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/api/ops.h"

namespace hetero::quant {

// n: the largest power of two that divides head_dim. A head is rotated block by block of n; 1: it cannot be.
[[nodiscard]] inline std::uint32_t rotation_size(std::uint32_t head_dim) noexcept { return head_dim & (~head_dim + 1); }

// Rotates all heads of `x` into `y`, which may be x. Its own inverse, up to rounding.
inline void rotate(std::span<const float> x, std::span<float> y, std::uint32_t head_dim) noexcept {
    const std::uint32_t n = rotation_size(head_dim);
    if (n > 0) kernels::ops().hadamard(x.data(), y.data(), x.size() / n, n);
}

}  // namespace hetero::quant
