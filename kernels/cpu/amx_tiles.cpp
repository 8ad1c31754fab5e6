// Products of many tokens in bf16 with AMX: from Sapphire Rapids (2023). See api/tiles.h.
//
// A block of rows is expanded to bf16 in the order in which tile loads read it; it stays in the L2 cache while the
// tokens pass by, 32 at a time, which stay in the L1 cache. Four tile registers hold the sums of 32 tokens and 32 rows
// over all columns, so that two loads of 1 KiB feed four products.
#include "kernels/api/tiles.h"
#include "kernels/cpu/backends.h"
#define HETERO_ISA amx
#include "kernels/cpu/vec_avx512.h"
//
#include "kernels/cpu/dot_avx512.h"
//
#include "kernels/cpu/math.h"
//
#include "kernels/cpu/packing.h"
//
#include "kernels/cpu/amx_bf16.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_config.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels::amx {
namespace {

constexpr std::size_t kStepBytes = tile_tokens * tile_cols * sizeof(Bf16);  // 32 columns of 32 tokens or rows
constexpr std::size_t kTileBytes = kStepBytes / 2;                          // of a tile register
constexpr std::size_t kPanelBytes = 512 * 1024;                             // of rows expanded together
constexpr std::size_t kPanelSteps = 48;                                     // columns expanded together, at most
static_assert(kPanelBytes <= kScratchFloats * sizeof(float) && kPanelSteps * kStepBytes <= kPanelBytes);
static_assert(packed_cols == tile_cols && 2 * packed_rows == tile_tokens);

// ---- weights: 16 rows of a block as a tile, [pair of columns][row][2]

template <class P>
void expand_group(const Byte* block, std::size_t blocks, Byte* tile) {
    for (std::size_t b = 0; b < blocks; ++b, block += P::kBlockBytes, tile += kStepBytes) {
        const __m512 scale = part_f16(block + P::kCodeBytes);
        const __m512 low = P::kMin ? part_f16(block + P::kCodeBytes + 32) : scale * _mm512_set1_ps(-P::kZero);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
            const __m512i codes = P::codes(block, j, 0), byte = _mm512_set1_epi32(0xff);
            __m512 w[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                const __m512i code = _mm512_and_si512(_mm512_srli_epi32(codes, static_cast<unsigned>(8 * i)), byte);
                w[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), scale, low);
            }
            _mm512_store_si512(tile + 128 * j, bf16_pairs(w[0], w[1]));
            _mm512_store_si512(tile + 128 * j + 64, bf16_pairs(w[2], w[3]));
        }
    }
}

// ---- the product of 32 tokens and 32 rows

template <bool Load>
HETERO_INLINE void multiply_step(const Byte* x, const Byte* w, std::size_t steps, float* y, std::size_t y_bytes) {
    float* const below = y + 16 * y_bytes / sizeof(float);
    if constexpr (Load) {
        _tile_loadd(0, y, y_bytes);
        _tile_loadd(1, y + 16, y_bytes);
        _tile_loadd(2, below, y_bytes);
        _tile_loadd(3, below + 16, y_bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (std::size_t step = 0; step < steps; ++step, x += kStepBytes, w += kStepBytes) {
        _tile_loadd(4, x, 64);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + kTileBytes, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x + kTileBytes, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, y, y_bytes);
    _tile_stored(1, y + 16, y_bytes);
    _tile_stored(2, below, y_bytes);
    _tile_stored(3, below + 16, y_bytes);
}

HETERO_INLINE void multiply(const Byte* x, const Byte* w, std::size_t steps, bool load, float* y, std::size_t y_bytes) {
    load ? multiply_step<true>(x, w, steps, y, y_bytes) : multiply_step<false>(x, w, steps, y, y_bytes);
}

// Rows [row_begin, row_end) of 32 and the first `tokens` of 32: the others have no place in y.
void multiply_some(const Byte* x, const Byte* w, std::size_t steps, bool load, float* y, std::size_t y_stride,
                   std::size_t row_begin, std::size_t row_end, std::size_t tokens) {
    alignas(64) float sums[tile_tokens][tile_tokens] = {};
    const std::size_t bytes = (row_end - row_begin) * sizeof(float);
    for (std::size_t t = 0; load && t < tokens; ++t) std::memcpy(sums[t] + row_begin, y + t * y_stride, bytes);
    memory_fence_for_tiles();
    multiply(x, w, steps, load, sums[0], sizeof sums[0]);
    memory_fence_for_tiles();
    for (std::size_t t = 0; t < tokens; ++t) std::memcpy(y + t * y_stride, sums[t] + row_begin, bytes);
}

struct Matrix {
    const Byte* packed;
    std::size_t row_begin, row_end, steps;
};

template <class P>
void gemm_packing(const Matrix& m, const Byte* x, std::size_t n_tokens, bool add, float* y, std::size_t y_stride,
                  Byte* panel) {
    const std::size_t panel_steps = smaller(m.steps, kPanelSteps);
    const std::size_t pairs_at_once = kPanelBytes / (panel_steps * kStepBytes);
    const std::size_t first_group = m.row_begin / packed_rows, end_group = (m.row_end + packed_rows - 1) / packed_rows;
    for (std::size_t from = first_group; from < end_group; from += 2 * pairs_at_once) {
        const std::size_t groups = smaller(2 * pairs_at_once, end_group - from);
        for (std::size_t first = 0; first < m.steps; first += panel_steps) {
            const std::size_t steps = smaller(panel_steps, m.steps - first);
            for (std::size_t g = 0; g < groups; ++g)
                expand_group<P>(m.packed + ((from + g) * m.steps + first) * P::kBlockBytes, steps,
                                panel + g / 2 * steps * kStepBytes + g % 2 * kTileBytes);
            memory_fence_for_tiles();
            for (std::size_t t = 0; t < n_tokens; t += tile_tokens) {
                const Byte* tokens = x + (t / tile_tokens * m.steps + first) * kStepBytes;
                for (std::size_t g = 0; g < groups; g += 2) {
                    const Byte* rows = panel + g / 2 * steps * kStepBytes;
                    const std::size_t row = (from + g) * packed_rows;
                    const std::size_t begin = row < m.row_begin ? m.row_begin - row : 0;
                    const std::size_t end = smaller(tile_tokens, m.row_end - row), count = n_tokens - t;
                    float* out = y + t * y_stride + (row + begin - m.row_begin);
                    const bool load = add || first > 0;
                    if (begin == 0 && end == tile_tokens && count >= tile_tokens)
                        multiply(tokens, rows, steps, load, out, y_stride * sizeof(float));
                    else
                        multiply_some(tokens, rows, steps, load, out, y_stride, begin, end,
                                      smaller(tile_tokens, count));
                }
            }
        }
    }
    memory_fence_for_tiles();
}

void gemm(Packing packing, const void* packed, std::size_t row_begin, std::size_t row_end, std::size_t cols,
          const Bf16* x, std::size_t n_tokens, bool add, float* y, std::size_t y_stride) {
    if (row_begin >= row_end || n_tokens == 0) return;
    auto* panel = reinterpret_cast<Byte*>(thread_scratch());
    if (panel == nullptr || cols == 0)
        return ref::tile_gemm(packing, packed, row_begin, row_end, cols, x, n_tokens, add, y, y_stride);
    const WholeTiles tiles;
    const Matrix matrix{static_cast<const Byte*>(packed), row_begin, row_end, packed_blocks(cols)};
    visit_packing(packing, [&](auto pack) {
        gemm_packing<decltype(pack)>(matrix, reinterpret_cast<const Byte*>(x), n_tokens, add, y, y_stride, panel);
    });
}

// ---- activations

HETERO_INLINE __m256i to_bf16(__m512 v) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)); }

// Writes columns of tiles: value(token, col, mask) gives 16 columns of a token, 0 outside the mask.
template <class Value>
HETERO_INLINE void write_tiles(std::size_t n_tokens, const TileColumns& out, Value value) {
    const std::size_t steps = (out.cols + tile_cols - 1) / tile_cols;
    auto* bytes = reinterpret_cast<Byte*>(out.tiles);
    for (std::size_t t = 0; t < n_tokens; ++t) {
        Byte* row = bytes + (t / tile_tokens * steps + out.first_col / tile_cols) * kStepBytes + t % tile_tokens * 64;
        for (std::size_t col = 0; col < out.n_cols; col += 32, row += kStepBytes) {
            const std::size_t left = out.n_cols - col;
            const __mmask16 low = left >= 16 ? first(16) : first(left);
            const __mmask16 high = left >= 32 ? first(16) : left > 16 ? first(left - 16) : 0;
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(row), to_bf16(value(t, col, low)));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 32), to_bf16(value(t, col + 16, high)));
        }
    }
    const std::size_t over = n_tokens % tile_tokens;
    if (over == 0) return;
    Byte* block = bytes + (n_tokens / tile_tokens * steps + out.first_col / tile_cols) * kStepBytes + over * 64;
    for (std::size_t col = 0; col < out.n_cols; col += 32, block += kStepBytes)
        for (std::size_t i = 0; i < (tile_tokens - over) * 64; i += 64)
            _mm512_storeu_si512(block + i, _mm512_setzero_si512());
}

void round(const float* x, std::size_t x_stride, std::size_t n_tokens, const TileColumns& out) {
    write_tiles(
        n_tokens, out, [&](std::size_t t, std::size_t col, __mmask16 mask) __attribute__((always_inline)) {
            return _mm512_maskz_loadu_ps(mask, x + t * x_stride + col);
        });
}

// 1 / (1 + exp(-x)) within 2^-13, with the reciprocal of the instruction.
HETERO_INLINE __m512 sigmoid(__m512 x) {
    const __m512 power = exp2(_mm512_mul_ps(x, _mm512_set1_ps(-kLog2E)));
    return _mm512_rcp14_ps(_mm512_add_ps(power, _mm512_set1_ps(1.0F)));
}

void silu_mul(const float* gate, const float* up, std::size_t stride, std::size_t n_tokens, const TileColumns& out) {
    write_tiles(
        n_tokens, out, [&](std::size_t t, std::size_t col, __mmask16 mask) __attribute__((always_inline)) {
            const __m512 g = _mm512_maskz_loadu_ps(mask, gate + t * stride + col);
            return g * sigmoid(g) * _mm512_maskz_loadu_ps(mask, up + t * stride + col);
        });
}

}  // namespace

const TileOps kTileOps = {
    .name = "amx", .round = round, .silu_mul = silu_mul, .gemm = gemm, .attention = tile_attention};

}  // namespace hetero::kernels::amx
