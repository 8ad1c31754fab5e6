// Prefill in 16 bits: attention of a chunk of queries, and products of packed weights and many tokens in bf16, on the
// matrix unit of a CPU. What Ops has for packed weights (packed_gemm) is exact and fits one token; here inputs are
// rounded to bf16, sums stay in f32, and a whole chunk of tokens passes by while a block of weights lies expanded in the
// cache.
//
// Tiles of n tokens and `cols` columns: [n / 32][cols / 32][token % 32][col % 32] of bf16, both divisions rounded up,
// zeros beyond n and cols. So 32 columns of 32 tokens are 2 KiB that lie together.
//
// A result depends on the inputs of its own token and row alone: not on how many tokens came together, nor on how rows
// were divided.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/api/ops.h"

namespace hetero::kernels {

constexpr std::size_t tile_tokens = 32, tile_cols = 32;

using Bf16 = std::uint16_t;

// Elements of the tiles of n tokens; also where token n begins, if n is a multiple of 32.
[[gnu::always_inline]] constexpr std::size_t tiles_size(std::size_t n_tokens, std::size_t cols) {
    return (n_tokens + tile_tokens - 1) / tile_tokens * tile_tokens * ((cols + tile_cols - 1) / tile_cols * tile_cols);
}

// Columns [first_col, first_col + n_cols) of tiles with `cols` columns; first_col is a multiple of 32.
struct TileColumns {
    Bf16* tiles = nullptr;
    std::size_t cols = 0, first_col = 0, n_cols = 0;
};

// Where a packed matrix starts (api/packed.h).
struct PackedRows {
    Packing packing = Packing::u8;
    const void* data = nullptr;
};

struct TileOps {
    const char* name;  // of the backend

    // x [n_tokens][n_cols], stride x_stride, to bf16 (nearest even; a subnormal result may become zero) at the given
    // columns; what lies beyond n_tokens and beyond the last column within their tiles becomes zero.
    void (*round)(const float* x, std::size_t x_stride, std::size_t n_tokens, const TileColumns& out);
    // The same of silu(gate) * up.   |error| <= (2^-8 + 2^-12) * |silu(gate) * up| (+ 2^-120)
    void (*silu_mul)(const float* gate, const float* up, std::size_t stride, std::size_t n_tokens,
                     const TileColumns& out);

    // y[t][row - row_begin] = w[row] . x[t], or += with `add`, for rows [row_begin, row_end) of the matrix that starts
    // at `packed` (api/packed.h) and n_tokens of x, tiles with `cols` columns. A weight counts as bf16(fma(code - zero,
    // scale, min)), exact before it is rounded to nearest even. |error| <= c * (|w row|_2 * |x|_2 + |y before|) * 2^-24
    // of the product of the rounded operands, c = 2 * sqrt(cols) + 8; operands and sums that are subnormal may count as
    // zero.
    void (*gemm)(Packing packing, const void* packed, std::size_t row_begin, std::size_t row_end, std::size_t cols,
                 const Bf16* x, std::size_t n_tokens, bool add, float* y, std::size_t y_stride);

    // silu(gate x) * (up x) for rows [row_begin, row_end) of two matrices of one shape, row_begin a multiple of
    // packed_rows, to the columns `out`, of which there is one for each row: the bits of gemm and silu_mul.
    void (*gated_gemm)(const PackedRows& gate, const PackedRows& up, std::size_t row_begin, std::size_t row_end,
                       std::size_t cols, const Bf16* x, std::size_t n_tokens, const TileColumns& out);
};

// Of a backend of all_backends(); null where it has none: packed_gemm is faster there.
[[nodiscard]] const TileOps* tile_ops(const Ops& backend = ops()) noexcept;

// Ops::attention for a chunk of a prompt, in 16 bits. It converts K and V in each call, which should have some hundred
// queries. Keys and values below kv_tokens must be finite, whether a query sees them or not. Weights and V count as
// bf16, Q and K as sums of two bf16 ("amx"), l = 2^-14, or as multiples of |q| / 32000 and |k| / 32000, l =
// sqrt(head_dim_k) / 31900. With e = |q| |k|max scale (l + (2 sqrt(head_dim_k) + 8) 2^-24) + (4 |score|max + 8 softcap)
// 2^-24, the error of the scores: |error| <= (2 e + 2^-7) |v|max.
using PrefillAttention = void (*)(const AttentionArgs& args);

// Of a backend of all_backends(); null where it has none: Ops::attention is as fast there.
[[nodiscard]] PrefillAttention prefill_attention(const Ops& backend = ops()) noexcept;

}  // namespace hetero::kernels
