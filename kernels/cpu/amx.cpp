// AMX-INT8 tiles for many tokens, AVX-512 VNNI for few: from Sapphire Rapids (2023).
//
// A tile product multiplies 16 tokens by 16 rows over the 32 columns of one block; its integers are scaled and added in
// AVX-512 registers while the next block's product runs. Same sums in the same order as in packed.h.
#include "kernels/cpu/backends.h"
#define HETERO_ISA amx
#include "kernels/cpu/vec_avx512.h"
//
#include "kernels/cpu/dot_avx512.h"
//
#include "kernels/cpu/math.h"
//
#include "kernels/cpu/packed.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_config.h"

namespace hetero::kernels::amx {
namespace {

constexpr std::size_t kTileTokens = 16;
static_assert(kTileTokens == activation_tile);
constexpr std::size_t kTokenBlock = kTileTokens * activation_block_bytes;
constexpr std::size_t kSlots = 4;  // blocks whose products are under way together

constexpr std::size_t kPanelsBytes = 384 * 1024;  // of groups unpacked together: part of an L2 cache
static_assert(kPanelsBytes <= kScratchFloats * sizeof(float));

constexpr std::size_t kPanelBlock = 512 + 64 + 64;                                  // codes, f32 scales and mins
constexpr std::size_t kPanelBlocks = kScratchFloats * sizeof(float) / kPanelBlock;  // at most

// Codes are lowered by their zero.
template <class P>
void unpack_group(const Byte* block, std::size_t blocks, Byte* panel) {
    for (std::size_t b = 0; b < blocks; ++b, block += P::kBlockBytes, panel += kPanelBlock) {
        prefetch(block, P::kBlockBytes, kAhead);
        for (int part = 0; part < kParts; ++part) {
            const std::size_t offset = static_cast<std::size_t>(part) * kWordBytes;
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {
                Words codes = P::codes(block, j, part);
                if constexpr (P::kZero != 0) codes = bytes_minus(codes, P::kZero);
                words_store(panel + 64 * j + offset, codes);
            }
            const Byte* scales = block + P::kCodeBytes + offset / 2;
            part_store(reinterpret_cast<float*>(panel + 512 + offset), part_f16(scales));
            if constexpr (P::kMin) part_store(reinterpret_cast<float*>(panel + 576 + offset), part_f16(scales + 32));
        }
    }
}

// Asks for a block of packed weights that are unpacked later.
template <class P>
HETERO_INLINE void fetch_block(const Byte* packed, std::size_t b) {
    for (std::size_t i = 0; i < P::kBlockBytes; i += 64) __builtin_prefetch(packed + b * P::kBlockBytes + i, 0, 2);
}

template <int N>
struct Slot {
    static constexpr int value = N;
};

void configure_tiles() {
    TileConfig config;
    for (int tile = 0; tile < 4; ++tile) {  // products
        config.rows[tile] = kTileTokens;
        config.row_bytes[tile] = 64;
    }
    for (int tile = 4; tile < 6; ++tile) {  // tokens
        config.rows[tile] = kTileTokens;
        config.row_bytes[tile] = packed_cols;
    }
    for (int tile = 6; tile < 8; ++tile) {  // weights
        config.rows[tile] = packed_cols / 4;
        config.row_bytes[tile] = 64;
    }
    load_config(config);
}

// out[token][row] = the dots of block b. Tile registers are named by literals; each slot has its own.
#define HETERO_MULTIPLY_BLOCK(product, tokens_tile, weights_tile)                  \
    _tile_zero(product);                                                           \
    _tile_loadd(tokens_tile, tokens + b * kTokenBlock, packed_cols);               \
    _tile_loadd(weights_tile, panel + b * kPanelBlock, 64);                        \
    if constexpr (P::kZero != 0)                                                   \
        _tile_dpbssd(product, tokens_tile, weights_tile); /* panel: code - zero */ \
    else                                                                           \
        _tile_dpbsud(product, tokens_tile, weights_tile);                          \
    _tile_stored(product, out, 64)

template <class P, int Slot>
HETERO_INLINE void multiply_block(const Byte* panel, const Byte* tokens, std::size_t b, std::int32_t* out) {
    if constexpr (Slot == 0) {
        HETERO_MULTIPLY_BLOCK(0, 4, 6);
    } else if constexpr (Slot == 1) {
        HETERO_MULTIPLY_BLOCK(1, 5, 7);
    } else if constexpr (Slot == 2) {
        HETERO_MULTIPLY_BLOCK(2, 4, 6);
    } else {
        HETERO_MULTIPLY_BLOCK(3, 5, 7);
    }
}

// `next`: null, or packed weights that are unpacked next, which memory is asked for meanwhile.
template <class P>
void multiply_tile(const Byte* panel, std::size_t blocks, const Byte* tokens, const Group& group, bool add_to_y,
                   float* y, std::size_t y_stride, const Byte* next) {
    alignas(64) std::int32_t dots[kSlots][kTileTokens * packed_rows];
    alignas(64) float low[kTileTokens][packed_rows];
    const auto multiply = [&](auto slot, std::size_t b) __attribute__((always_inline)) {
        if (b < blocks) multiply_block<P, slot.value>(panel, tokens, b, dots[slot.value]);
    };
    multiply(Slot<0>{}, 0);
    multiply(Slot<1>{}, 1);
    multiply(Slot<2>{}, 2);
    multiply(Slot<3>{}, 3);
    __m512 sum[kTileTokens];
    if constexpr (P::kMin) {
#pragma GCC unroll 16
        for (int t = 0; t < 16; ++t) sum[t] = _mm512_setzero_ps();
        for (std::size_t b = 0; b < blocks; ++b) {
            const __m512 min = _mm512_load_ps(panel + b * kPanelBlock + 576);
            const Factors factors(tokens + b * kTokenBlock, kTileTokens);
#pragma GCC unroll 16
            for (int t = 0; t < 16; ++t) sum[t] = _mm512_fmadd_ps(min, _mm512_set1_ps(factors.weighted[t]), sum[t]);
        }
#pragma GCC unroll 16
        for (int t = 0; t < 16; ++t) _mm512_store_ps(low[t], sum[t]);
    }
#pragma GCC unroll 16
    for (int t = 0; t < 16; ++t) sum[t] = _mm512_setzero_ps();
    const auto add = [&](auto slot, std::size_t b) __attribute__((always_inline)) {
        if (b >= blocks) return;
        if (next != nullptr) fetch_block<P>(next, b);
        const __m512 scale = _mm512_load_ps(panel + b * kPanelBlock + 512);
        const Factors factors(tokens + b * kTokenBlock, kTileTokens);
#pragma GCC unroll 16
        for (int t = 0; t < 16; ++t)
            sum[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(dots[slot.value] + 16 * t)),
                                     _mm512_mul_ps(scale, _mm512_set1_ps(factors.scale[t])), sum[t]);
        multiply(slot, b + kSlots);
    };
    for (std::size_t b = 0; b < blocks; b += kSlots) {
        add(Slot<0>{}, b);
        add(Slot<1>{}, b + 1);
        add(Slot<2>{}, b + 2);
        add(Slot<3>{}, b + 3);
    }
#pragma GCC unroll 16
    for (int t = 0; t < 16; ++t) {
        const __m512 bottom = P::kMin ? _mm512_load_ps(low[t]) : _mm512_setzero_ps();
        store_rows({{_mm512_add_ps(sum[t], bottom)}}, group.begin, group.end, add_to_y,
                   y + static_cast<std::size_t>(t) * y_stride);
    }
}

// The panels of several groups are unpacked, then each tile of tokens meets all of them: the tokens stay in the L1
// cache, the panels come from the L2 cache in the order in which they lie.
template <class P>
void gemm_tiles(const Byte* packed, std::size_t row_begin, std::size_t row_end, std::size_t blocks,
                const Byte* activations, std::size_t in_tiles, bool add, float* y, std::size_t y_stride, Byte* panels) {
    const std::size_t panel_bytes = blocks * kPanelBlock;
    // A single tile meets each panel once, while it is still in the L1 cache.
    const std::size_t at_once = panel_bytes > kPanelsBytes || in_tiles == kTileTokens ? 1 : kPanelsBytes / panel_bytes;
    const std::size_t last_group = (row_end - 1) / packed_rows;
    for (std::size_t first = row_begin / packed_rows; first <= last_group; first += at_once) {
        const std::size_t end = last_group + 1 - first < at_once ? last_group + 1 : first + at_once;
        for (std::size_t group = first; group < end; ++group)
            unpack_group<P>(packed + group * blocks * P::kBlockBytes, blocks, panels + (group - first) * panel_bytes);
        memory_fence_for_tiles();
        const std::size_t from = first * packed_rows < row_begin ? row_begin : first * packed_rows;
        const std::size_t to = end * packed_rows < row_end ? end * packed_rows : row_end;
        // Where each panel is used once, the wait for its weights would be as long as the products.
        const Byte* next = at_once == 1 && end <= last_group ? packed + end * blocks * P::kBlockBytes : nullptr;
        for (std::size_t t = 0; t < in_tiles; t += kTileTokens)
            for_groups(
                from, to, [&](const Group& group) __attribute__((always_inline)) {
                    multiply_tile<P>(panels + (group.index - first) * panel_bytes, blocks,
                                     activations + t * blocks * activation_block_bytes, group, add,
                                     y + t * y_stride + group.index * packed_rows, y_stride, t == 0 ? next : nullptr);
                });
    }
}

void tile_gemm(Packing packing, const void* packed, std::size_t row_begin, std::size_t row_end, std::size_t cols,
               const void* activations, const void* residual, std::size_t n_tokens, float* y, std::size_t y_stride) {
    constexpr std::size_t block_rows = 128;  // whose weights are in a cache near by when the residual meets them
    const std::size_t blocks = packed_blocks(cols);
    const auto *x = static_cast<const Byte*>(activations), *rest = static_cast<const Byte*>(residual);
    const std::size_t in_tiles = n_tokens / kTileTokens * kTileTokens;
    float* scratch =
        in_tiles > 0 && blocks > 0 && row_begin < row_end && blocks <= kPanelBlocks ? thread_scratch() : nullptr;
    std::size_t done = 0;
    if (scratch) {
        configure_tiles();
        visit_packing(packing, [&](auto pack) {
            const std::size_t step = rest == nullptr ? row_end - row_begin : block_rows;
            for (std::size_t from = row_begin; from < row_end; from += step) {
                const std::size_t to = row_end - from < step ? row_end : from + step;
                const auto multiply = [&](const Byte* tokens, bool add) {
                    gemm_tiles<decltype(pack)>(static_cast<const Byte*>(packed), from, to, blocks, tokens, in_tiles,
                                               add, y, y_stride, reinterpret_cast<Byte*>(scratch));
                };
                multiply(x, false);
                if (rest != nullptr) multiply(rest, true);
            }
        });
        _tile_release();
        done = in_tiles;
    }
    if (done == n_tokens) return;
    const std::size_t at = done * blocks * activation_block_bytes;
    packed_gemm(packing, packed, row_begin, row_end, cols, x + at, rest == nullptr ? nullptr : rest + at,
                n_tokens - done, y + done * y_stride, y_stride);
}

}  // namespace

const PackedOps kPackedOps = {.quantize_activations = quantize_activations,
                              .packed_gemm = tile_gemm,
                              .attention_spans = avx512_vnni::codes_attention_spans};

}  // namespace hetero::kernels::amx
