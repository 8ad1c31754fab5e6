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
#include "kernels/cpu/bf16.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_config.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels::amx {
namespace {

constexpr std::size_t kStepBytes = tile_tokens * tile_cols * sizeof(Bf16);  // 32 columns of 32 tokens or rows
constexpr std::size_t kTileBytes = kStepBytes / 2;                          // of a tile register
constexpr std::size_t kPanelBytes = 576 * 1024;                             // of rows expanded together
constexpr std::size_t kPanelSteps = 48;                                     // columns expanded together, at most
constexpr std::size_t kNearSteps = 18;                                      // of 32 tokens in the L1 cache
constexpr std::size_t kPair = tile_tokens * tile_tokens;                    // sums of 32 tokens and 32 rows
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

// Steps [first, first + steps) of `groups` groups from `from` on; two of them, 32 rows, lie together: [pair][step][2].
void expand(Packing packing, const Byte* packed, std::size_t all_steps, std::size_t from, std::size_t groups,
            std::size_t first, std::size_t steps, Byte* panel) {
    visit_packing(packing, [&](auto pack) {
        using P = decltype(pack);
        for (std::size_t g = 0; g < groups; ++g)
            expand_group<P>(packed + ((from + g) * all_steps + first) * P::kBlockBytes, steps,
                            panel + g / 2 * steps * kStepBytes + g % 2 * kTileBytes);
    });
    memory_fence_for_tiles();
}

// ---- the product of 32 tokens and 32 rows

// What is done besides, a part at each step: vector units have time, and so have loads from far away.
struct Nothing {
    HETERO_INLINE void step() {}
    HETERO_INLINE void finish() {}
};

// Brings 32 x 32 sums near, which are added to or written next.
class Fetch {
public:
    HETERO_INLINE Fetch(const float* y, std::size_t stride, std::size_t steps)
        : at_(y), stride_(stride), rows_((tile_tokens + steps - 1) / steps) {}
    HETERO_INLINE void step() {
        for (std::size_t i = 0; i < rows_ && left_ > 0; ++i, --left_, at_ += stride_) {
            _mm_prefetch(at_, _MM_HINT_T0);
            _mm_prefetch(at_ + 16, _MM_HINT_T0);
        }
    }
    HETERO_INLINE void finish() {}

private:
    const float* at_;
    std::size_t stride_, rows_, left_ = tile_tokens;
};

// The tokens come from the L1 cache; the rows pass by, and should not drive them out.
template <bool Load, class Side>
HETERO_INLINE void multiply_step(const Byte* x, const Byte* w, std::size_t steps, float* y, std::size_t y_bytes,
                                 Side& side) {
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
        _tile_stream_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_stream_loadd(7, w + kTileBytes, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x + kTileBytes, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        side.step();
    }
    side.finish();
    memory_fence_for_tiles();
    _tile_stored(0, y, y_bytes);
    _tile_stored(1, y + 16, y_bytes);
    _tile_stored(2, below, y_bytes);
    _tile_stored(3, below + 16, y_bytes);
    memory_fence_for_tiles();
}

template <class Side>
HETERO_INLINE void multiply(const Byte* x, const Byte* w, std::size_t steps, bool load, float* y, std::size_t y_bytes,
                            Side side) {
    load ? multiply_step<true>(x, w, steps, y, y_bytes, side) : multiply_step<false>(x, w, steps, y, y_bytes, side);
}

// Rows [row_begin, row_end) of 32 and the first `tokens` of 32: the others have no place in y.
void multiply_some(const Byte* x, const Byte* w, std::size_t steps, bool load, float* y, std::size_t y_stride,
                   std::size_t row_begin, std::size_t row_end, std::size_t tokens) {
    alignas(64) float sums[tile_tokens][tile_tokens] = {};
    const std::size_t bytes = (row_end - row_begin) * sizeof(float);
    for (std::size_t t = 0; load && t < tokens; ++t) std::memcpy(sums[t] + row_begin, y + t * y_stride, bytes);
    memory_fence_for_tiles();
    multiply(x, w, steps, load, sums[0], sizeof sums[0], Nothing());
    for (std::size_t t = 0; t < tokens; ++t) std::memcpy(y + t * y_stride, sums[t] + row_begin, bytes);
}

// The size of parts of n, none above `most`, that are about equal.
HETERO_INLINE std::size_t even_part(std::size_t n, std::size_t most) {
    const std::size_t parts = (n + most - 1) / most;
    return (n + parts - 1) / parts;
}

// Steps [0, steps) in parts that have their place in the L1 cache: part(first, steps).
template <class Part>
HETERO_INLINE void for_near_steps(std::size_t steps, Part part) {
    const std::size_t size = even_part(steps, kNearSteps);
    for (std::size_t first = 0; first < steps; first += size) part(first, smaller(size, steps - first));
}

void gemm(Packing packing, const void* packed, std::size_t row_begin, std::size_t row_end, std::size_t cols,
          const Bf16* x_tiles, std::size_t n_tokens, bool add, float* y, std::size_t y_stride) {
    if (row_begin >= row_end || n_tokens == 0) return;
    auto* panel = reinterpret_cast<Byte*>(thread_scratch());
    if (panel == nullptr || cols == 0)
        return ref::tile_gemm(packing, packed, row_begin, row_end, cols, x_tiles, n_tokens, add, y, y_stride);
    const WholeTiles tiles;
    const auto* x = reinterpret_cast<const Byte*>(x_tiles);
    const std::size_t all_steps = packed_blocks(cols), panel_steps = smaller(all_steps, kPanelSteps);
    const std::size_t first_group = row_begin / packed_rows, end_group = (row_end + packed_rows - 1) / packed_rows;
    const std::size_t pairs = (end_group - first_group + 1) / 2;
    const std::size_t pairs_at_once = even_part(pairs, kPanelBytes / (panel_steps * kStepBytes));
    for (std::size_t from = first_group; from < end_group; from += 2 * pairs_at_once) {
        const std::size_t groups = smaller(2 * pairs_at_once, end_group - from);
        for (std::size_t first = 0; first < all_steps; first += panel_steps) {
            const std::size_t panel_width = smaller(panel_steps, all_steps - first);
            expand(packing, static_cast<const Byte*>(packed), all_steps, from, groups, first, panel_width, panel);
            // 32 tokens and their sums stay near while the rows pass by.
            const auto some_tokens = [&](std::size_t t, std::size_t s, std::size_t steps)
                __attribute__((always_inline)) {
                const Byte* tokens = x + (t / tile_tokens * all_steps + first + s) * kStepBytes;
                const bool load = add || first + s > 0;
                for (std::size_t g = 0; g < groups; g += 2) {
                    const Byte* rows = panel + (g / 2 * panel_width + s) * kStepBytes;
                    const std::size_t row = (from + g) * packed_rows;
                    const std::size_t begin = row < row_begin ? row_begin - row : 0;
                    const std::size_t end = smaller(tile_tokens, row_end - row), count = n_tokens - t;
                    float* out = y + t * y_stride + (row + begin - row_begin);
                    const float* next = g + 2 < groups ? out + tile_tokens : out + tile_tokens * y_stride - 16 * g;
                    if (begin == 0 && end == tile_tokens && count >= tile_tokens)
                        multiply(tokens, rows, steps, load, out, y_stride * sizeof(float),
                                 Fetch(next, y_stride, steps));
                    else
                        multiply_some(tokens, rows, steps, load, out, y_stride, begin, end,
                                      smaller(tile_tokens, count));
                }
            };
            for (std::size_t t = 0; t < n_tokens; t += tile_tokens)
                for_near_steps(
                    panel_width, [&](std::size_t s, std::size_t steps)
                                     __attribute__((always_inline)) { some_tokens(t, s, steps); });
        }
    }
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

// silu(gate) * up of 32 tokens and 32 rows, to tiles: a part at each step of the next product.
class SiluMul {
public:
    SiluMul() = default;
    HETERO_INLINE SiluMul(const float* sums, std::size_t tokens, std::size_t rows, Byte* out, std::size_t steps)
        : at_(sums),
          to_(out),
          tokens_(tokens),
          mask_(static_cast<__mmask32>((std::uint64_t{1} << rows) - 1)),
          at_once_((tile_tokens + steps - 1) / steps),
          left_(tile_tokens) {}
    HETERO_INLINE void step() {
        for (std::size_t i = 0; i < at_once_ && left_ > 0; ++i) one();
    }
    HETERO_INLINE void finish() {
        while (left_ > 0) one();
    }

private:
    HETERO_INLINE void one() {
        const auto value = [&](std::size_t i) __attribute__((always_inline)) {
            const __m512 g = _mm512_load_ps(at_ + i);
            return g * sigmoid(g) * _mm512_load_ps(at_ + kPair + i);
        };
        const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(value(16), value(0)));
        _mm512_storeu_si512(to_, _mm512_maskz_mov_epi16(tokens_ > 0 ? mask_ : 0, both));
        tokens_ -= tokens_ > 0;
        at_ += tile_tokens;
        to_ += tile_cols * sizeof(Bf16);
        --left_;
    }

    const float* at_ = nullptr;  // gate, then up: [token][row] each
    Byte* to_ = nullptr;
    std::size_t tokens_ = 0;  // that are there
    __mmask32 mask_ = 0;
    std::size_t at_once_ = 0, left_ = 0;
};

constexpr std::size_t kGatedPairs = 12;  // of gate and of up, at once

void gated_gemm(const PackedRows& gate, const PackedRows& up, std::size_t row_begin, std::size_t row_end,
                std::size_t cols, const Bf16* x_tiles, std::size_t n_tokens, const TileColumns& out) {
    if (row_begin >= row_end || n_tokens == 0) return;
    constexpr std::size_t kSums = kGatedPairs * 2 * kPair * sizeof(float), kScratch = kScratchFloats * sizeof(float);
    static_assert(kPanelBytes + kSums <= kScratch);
    auto* scratch = reinterpret_cast<Byte*>(thread_scratch());
    if (scratch == nullptr || cols == 0)
        return ref::tile_gated_gemm(gate, up, row_begin, row_end, cols, x_tiles, n_tokens, out);
    auto* const sums = reinterpret_cast<float*>(scratch);
    Byte* const panel = scratch + kSums;
    const WholeTiles tiles;
    const auto* x = reinterpret_cast<const Byte*>(x_tiles);
    const std::size_t all_steps = packed_blocks(cols), out_steps = packed_blocks(out.cols);
    // Of very wide matrices a part of the columns is expanded at once, again for each 32 tokens.
    const std::size_t panel_steps = smaller(all_steps, (kScratch - kSums) / (2 * kStepBytes));
    const std::size_t token_block = panel_steps < all_steps ? tile_tokens : n_tokens;
    const std::size_t most = smaller(kGatedPairs, kPanelBytes / (2 * panel_steps * kStepBytes));
    const std::size_t first_group = row_begin / packed_rows, end_group = (row_end + packed_rows - 1) / packed_rows;
    const std::size_t pairs_at_once = even_part((end_group - first_group + 1) / 2, most > 0 ? most : 1);
    const auto expand_rows = [&](const PackedRows& rows, std::size_t from, std::size_t groups, std::size_t first,
                                 std::size_t steps, Byte* to) {
        if (groups % 2 != 0) {  // nothing beside the last group
            Byte* last = to + groups / 2 * steps * kStepBytes + kTileBytes;
            for (std::size_t step = 0; step < steps; ++step, last += kStepBytes) std::memset(last, 0, kTileBytes);
        }
        expand(rows.packing, static_cast<const Byte*>(rows.data), all_steps, from, groups, first, steps, to);
    };
    for (std::size_t from = first_group; from < end_group; from += 2 * pairs_at_once) {
        const std::size_t groups = smaller(2 * pairs_at_once, end_group - from), pairs = (groups + 1) / 2;
        for (std::size_t block = 0; block < n_tokens; block += token_block) {
            SiluMul pending;
            for (std::size_t first = 0; first < all_steps; first += panel_steps) {
                const std::size_t width = smaller(panel_steps, all_steps - first);
                Byte* const up_panel = panel + pairs * width * kStepBytes;
                expand_rows(gate, from, groups, first, width, panel);
                expand_rows(up, from, groups, first, width, up_panel);
                for (std::size_t t = block; t < smaller(block + token_block, n_tokens); t += tile_tokens)
                    for_near_steps(
                        width, [&](std::size_t s, std::size_t steps) __attribute__((always_inline)) {
                            const Byte* tokens = x + (t / tile_tokens * all_steps + first + s) * kStepBytes;
                            const bool load = first + s > 0, last = first + s + steps == all_steps;
                            for (std::size_t pair = 0; pair < pairs; ++pair) {
                                // Sums that are complete at once take turns in the same place.
                                float* own = sums + (steps == all_steps ? 0 : pair * 2 * kPair);
                                const std::size_t at = (pair * width + s) * kStepBytes;
                                constexpr std::size_t stride = tile_tokens * sizeof(float);
                                multiply(tokens, panel + at, steps, load, own, stride, pending);
                                pending = {};
                                multiply(tokens, up_panel + at, steps, load, own + kPair, stride, Nothing());
                                if (!last) continue;
                                const std::size_t row = from * packed_rows + pair * tile_tokens;
                                const std::size_t col = out.first_col + row - row_begin;
                                Byte* to = reinterpret_cast<Byte*>(out.tiles) +
                                           (t / tile_tokens * out_steps + col / tile_cols) * kStepBytes;
                                pending = SiluMul(own, smaller(tile_tokens, n_tokens - t),
                                                  smaller(tile_tokens, row_end - row), to, steps);
                            }
                        });
            }
            pending.finish();
        }
    }
}

}  // namespace

const TileOps kTileOps = {.name = "amx",
                          .round = round,
                          .silu_mul = silu_mul,
                          .gemm = gemm,
                          .gated_gemm = gated_gemm};

}  // namespace hetero::kernels::amx
