// bf16 products over many tokens, as api/tiles.h defines them.
#include "kernels/api/tiles.h"

#include <algorithm>
#include <cmath>

#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {
namespace {

std::size_t place(std::size_t token, std::size_t col, std::size_t cols) {
    const std::size_t steps = (cols + tile_cols - 1) / tile_cols;
    return ((token / tile_tokens * steps + col / tile_cols) * tile_tokens + token % tile_tokens) * tile_cols +
           col % tile_cols;
}

template <class Value>
void write_tiles(std::size_t n_tokens, const TileColumns& out, Value value) {
    const std::size_t tokens = (n_tokens + tile_tokens - 1) / tile_tokens * tile_tokens;
    const std::size_t cols = (out.n_cols + tile_cols - 1) / tile_cols * tile_cols;
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t c = 0; c < cols; ++c)
            out.tiles[place(t, out.first_col + c, out.cols)] =
                t < n_tokens && c < out.n_cols ? f32_to_bf16(value(t, c)) : Bf16{0};
}

void tile_round(const float* x, std::size_t x_stride, std::size_t n_tokens, const TileColumns& out) {
    write_tiles(n_tokens, out, [&](std::size_t t, std::size_t c) { return x[t * x_stride + c]; });
}

void tile_silu_mul(const float* gate, const float* up, std::size_t stride, std::size_t n_tokens,
                   const TileColumns& out) {
    write_tiles(n_tokens, out, [&](std::size_t t, std::size_t c) {
        float y = 0;
        silu_mul(gate + t * stride + c, up + t * stride + c, &y, 1);
        return y;
    });
}

}  // namespace

void tile_gemm(Packing packing, const void* packed, std::size_t row_begin, std::size_t row_end, std::size_t cols,
               const Bf16* x, std::size_t n_tokens, bool add, float* y, std::size_t y_stride) {
    constexpr std::size_t together = 16;  // tokens that meet a weight when it is decoded
    for (std::size_t row = row_begin; row < row_end; ++row)
        for (std::size_t first = 0; first < n_tokens; first += together) {
            const std::size_t count = std::min(together, n_tokens - first);
            double sums[together] = {};
            for (std::size_t c = 0; c < cols; ++c) {
                const double w = bf16_to_f32(f32_to_bf16(packed_weight(packing, packed, row, c, cols)));
                const Bf16* values = x + place(first, c, cols);
                for (std::size_t t = 0; t < count; ++t)
                    sums[t] += w * static_cast<double>(bf16_to_f32(values[t * tile_cols]));
            }
            for (std::size_t t = 0; t < count; ++t) {
                float& out = y[(first + t) * y_stride + row - row_begin];
                out = static_cast<float>(add ? static_cast<double>(out) + sums[t] : sums[t]);
            }
        }
}

void tile_gated_gemm(const PackedRows& gate, const PackedRows& up, std::size_t row_begin, std::size_t row_end,
                     std::size_t cols, const Bf16* x, std::size_t n_tokens, const TileColumns& out) {
    const std::size_t rows = row_end - row_begin;
    for (std::size_t t = 0; t < n_tokens; t += tile_tokens) {
        const std::size_t count = std::min(tile_tokens, n_tokens - t);
        for (std::size_t row = 0; row < rows; row += tile_cols) {
            const std::size_t first = row_begin + row, end = std::min(first + tile_cols, row_end);
            float sums[2][tile_tokens * tile_cols];
            for (const bool is_up : {false, true}) {
                const PackedRows& matrix = is_up ? up : gate;
                tile_gemm(matrix.packing, matrix.data, first, end, cols, x + tiles_size(t, cols), count, false,
                          sums[is_up], tile_cols);
            }
            tile_silu_mul(sums[0], sums[1], tile_cols, count,
                          {out.tiles + tiles_size(t, out.cols), out.cols, out.first_col + row, end - first});
        }
    }
}

const TileOps kTileOps = {.name = "scalar",
                          .round = tile_round,
                          .silu_mul = tile_silu_mul,
                          .gemm = tile_gemm,
                          .gated_gemm = tile_gated_gemm};

}  // namespace hetero::kernels::ref
