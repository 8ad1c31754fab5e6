// Products of packed weights (api/packed.h) and 8-bit activations. A lane is a row: no sum across lanes is ever needed,
// and the order of summation, block by block, is the same for any number of tokens and every instruction set.
// Included after vec_*.h, dot_*.h and math.h, once per instruction set.
#pragma once
#include "kernels/cpu/packing.h"
#include "kernels/cpu/scratch.h"

namespace hetero::kernels::HETERO_ISA {
namespace {

constexpr std::size_t kAhead = 1536;  // bytes: how far before their use weights are asked for

// One tile of quantized activations.
struct Tokens {
    const Byte* tile;
    std::size_t count;  // tokens in the tile

    HETERO_INLINE const Byte* block(std::size_t b) const { return tile + b * count * activation_block_bytes; }
};

// Of one token, in a block.
struct Factors {
    const float *scale, *weighted;
    const std::int32_t* sum;

    HETERO_INLINE Factors(const Byte* block, std::size_t count)
        : scale(reinterpret_cast<const float*>(block + count * packed_cols)),
          weighted(scale + count),
          sum(reinterpret_cast<const std::int32_t*>(weighted + count)) {}
};

HETERO_INLINE Words four_columns(const Byte* q, int j) {
    std::int32_t word;
    std::memcpy(&word, q + 4 * j, sizeof word);
    return words_splat(word);
}

// ---- one token: weights straight from their packed form

// The products of a group with a token of N activations.
template <class P, int N>
HETERO_INLINE void group_dots(const Byte* block, std::size_t blocks, const Tokens (&x)[N], std::size_t token,
                              F32x16 (&y)[N]) {
    Part sum[N][kParts], low[N][kParts];
#pragma GCC unroll 2
    for (int i = 0; i < N; ++i)
        for (int part = 0; part < kParts; ++part) sum[i][part] = low[i][part] = part_zero();
    for (std::size_t b = 0; b < blocks; ++b, block += P::kBlockBytes) {
        prefetch(block, P::kBlockBytes, kAhead);
        Words first[N][kParts], second[N][kParts];
#pragma GCC unroll 2
        for (int i = 0; i < N; ++i) {
            const Factors factors(x[i].block(b), x[i].count);
#pragma GCC unroll 2
            for (int part = 0; part < kParts; ++part) {
                first[i][part] = words_splat((P::kTaken - P::kZero) * factors.sum[token]);
                second[i][part] = words_splat(0);
            }
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j)
#pragma GCC unroll 2
            for (int part = 0; part < kParts; ++part) {
                const Words codes0 = P::codes(block, j, part), codes1 = P::codes(block, j + 4, part);
#pragma GCC unroll 2
                for (int i = 0; i < N; ++i) {
                    const Byte* q = x[i].block(b) + token * packed_cols;
                    first[i][part] = P::dot(first[i][part], codes0, four_columns(q, j));
                    second[i][part] = P::dot(second[i][part], codes1, four_columns(q, j + 4));
                }
            }
#pragma GCC unroll 2
        for (int i = 0; i < N; ++i) {
            const Factors factors(x[i].block(b), x[i].count);
#pragma GCC unroll 2
            for (int part = 0; part < kParts; ++part) {
                const Byte* scales = block + P::kCodeBytes + static_cast<std::size_t>(part) * kWordBytes / 2;
                const Part scale = part_mul(part_f16(scales), part_splat(factors.scale[token]));
                sum[i][part] =
                    part_fma(words_to_float(words_add(first[i][part], second[i][part])), scale, sum[i][part]);
                if constexpr (P::kMin)
                    low[i][part] = part_fma(part_f16(scales + 32), part_splat(factors.weighted[token]), low[i][part]);
            }
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < N; ++i)
        for (int part = 0; part < kParts; ++part) y[i].part[part] = part_add(sum[i][part], low[i][part]);
}

template <class P>
HETERO_INLINE F32x16 group_dot(const Byte* block, std::size_t blocks, const Tokens& x, std::size_t token) {
    const Tokens one[] = {x};
    F32x16 y[1];
    group_dots<P, 1>(block, blocks, one, token, y);
    return y[0];
}
// The sum of both; where registers suffice, codes are unpacked once.
template <class P>
HETERO_INLINE F32x16 group_dot(const Byte* block, std::size_t blocks, const Tokens& x, const Tokens& residual,
                               std::size_t token) {
    if constexpr (kParts == 1) {
        const Tokens both[] = {x, residual};
        F32x16 y[2];
        group_dots<P, 2>(block, blocks, both, token, y);
        return y[0] + y[1];
    } else {
        return group_dot<P>(block, blocks, x, token) + group_dot<P>(block, blocks, residual, token);
    }
}

// Rows [begin, end) of a group's 16 to their places.
HETERO_INLINE void store_rows(F32x16 v, std::size_t begin, std::size_t end, bool add, float* y) {
    if (begin == 0 && end == packed_rows) return store(y, add ? load(y) + v : v);
    float lanes[packed_rows];
    store(lanes, v);
    for (std::size_t r = begin; r < end; ++r) y[r] = add ? y[r] + lanes[r] : lanes[r];
}

// ---- many tokens: a group's codes are unpacked once and stay in the nearest caches while the tokens pass by

constexpr std::size_t kPanelBlock = 512 + 64 + 64;                                  // codes, f32 scales and mins
constexpr std::size_t kPanelBlocks = kScratchFloats * sizeof(float) / kPanelBlock;  // at most
constexpr int kTileTokensMax = kParts == 1 ? 8 : 4;                                 // sums kept in registers

// Codes are lowered by `Less`.
template <class P, int Less>
void unpack_group(const Byte* block, std::size_t blocks, Byte* panel) {
    for (std::size_t b = 0; b < blocks; ++b, block += P::kBlockBytes, panel += kPanelBlock) {
        prefetch(block, P::kBlockBytes, kAhead);
        for (int part = 0; part < kParts; ++part) {
            const std::size_t offset = static_cast<std::size_t>(part) * kWordBytes;
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {
                Words codes = P::codes(block, j, part);
                if constexpr (Less != 0) codes = bytes_minus(codes, Less);
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

// Tokens [first, first + N) of a tile. `next`: null, or packed weights that are unpacked next, which memory is asked
// for meanwhile.
template <class P, int N>
void panel_dots(const Byte* panel, std::size_t blocks, const Tokens& x, std::size_t first, const Byte* next,
                F32x16* y) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
        const std::size_t offset = static_cast<std::size_t>(part) * kWordBytes;
        Part sum[N], low[N];
#pragma GCC unroll 8
        for (int t = 0; t < N; ++t) sum[t] = low[t] = part_zero();
        const Byte* block = panel + offset;
        for (std::size_t b = 0; b < blocks; ++b, block += kPanelBlock) {
            const Byte* q = x.block(b) + first * packed_cols;
            const Factors factors(x.block(b) + 4 * first, x.count);
            if (part == 0 && next != nullptr) fetch_block<P>(next, b);
            Words dots[N];
#pragma GCC unroll 8
            for (int t = 0; t < N; ++t) dots[t] = words_splat((P::kTaken - P::kZero) * factors.sum[t]);
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {
                const Words codes = words_load(block + 64 * j);
#pragma GCC unroll 8
                for (int t = 0; t < N; ++t) dots[t] = P::dot(dots[t], codes, four_columns(q + 32 * t, j));
            }
            const Part scale = part_load(reinterpret_cast<const float*>(block + 512));
#pragma GCC unroll 8
            for (int t = 0; t < N; ++t)
                sum[t] = part_fma(words_to_float(dots[t]), part_mul(scale, part_splat(factors.scale[t])), sum[t]);
            if constexpr (P::kMin) {
                const Part min = part_load(reinterpret_cast<const float*>(block + 576));
#pragma GCC unroll 8
                for (int t = 0; t < N; ++t) low[t] = part_fma(min, part_splat(factors.weighted[t]), low[t]);
            }
        }
#pragma GCC unroll 8
        for (int t = 0; t < N; ++t) y[t].part[part] = part_add(sum[t], low[t]);
    }
}

template <class P, int N>
HETERO_INLINE void panel_dots(std::size_t n, const Byte* panel, std::size_t blocks, const Tokens& x, std::size_t first,
                              const Byte* next, F32x16* y) {
    if constexpr (N > 1) {
        if (n < N) return panel_dots<P, N - 1>(n, panel, blocks, x, first, next, y);
    }
    panel_dots<P, N>(panel, blocks, x, first, next, y);
}

// Where a group of 16 rows lies, and which of them are wanted.
struct Group {
    std::size_t index, begin, end;  // rows [begin, end) of the 16
};

template <class Visit>
HETERO_INLINE void for_groups(std::size_t row_begin, std::size_t row_end, Visit visit) {
    for (std::size_t row = row_begin; row < row_end;) {
        const std::size_t group = row / packed_rows, first = group * packed_rows;
        const std::size_t end = row_end - first < packed_rows ? row_end - first : packed_rows;
        visit(Group{group, row - first, end});
        row = first + end;
    }
}

template <class P>
void gemm_packing(const Byte* packed, std::size_t row_begin, std::size_t row_end, std::size_t blocks,
                  const Byte* activations, const Byte* residual, std::size_t n_tokens, float* y, std::size_t y_stride) {
    float* scratch = n_tokens > 1 && blocks <= kPanelBlocks ? thread_scratch() : nullptr;
    for_groups(
        row_begin, row_end, [&](const Group& group) __attribute__((always_inline)) {
            const Byte* weights = packed + group.index * blocks * P::kBlockBytes;
            const bool last = (group.index + 1) * packed_rows >= row_end;
            const Byte* next = last ? nullptr : weights + blocks * P::kBlockBytes;
            Byte* panel = reinterpret_cast<Byte*>(scratch);
            if (panel) unpack_group<P, 0>(weights, blocks, panel);
            float* out = y + group.index * packed_rows;
            for (std::size_t t0 = 0; t0 < n_tokens; t0 += activation_tile) {
                const std::size_t left = n_tokens - t0, at = t0 * blocks * activation_block_bytes,
                                  count = left < activation_tile ? left : activation_tile;
                const Tokens x{activations + at, count}, rest{residual == nullptr ? nullptr : residual + at, count};
                for (std::size_t t = 0; t < count;) {
                    F32x16 sums[kTileTokensMax];
                    std::size_t tokens = 1;
                    if (panel) {
                        tokens = count - t < kTileTokensMax ? count - t : kTileTokensMax;
                        panel_dots<P, kTileTokensMax>(tokens, panel, blocks, x, t, next, sums);
                        next = nullptr;
                        if (residual != nullptr) {
                            F32x16 more[kTileTokensMax];
                            panel_dots<P, kTileTokensMax>(tokens, panel, blocks, rest, t, nullptr, more);
                            for (std::size_t i = 0; i < tokens; ++i) sums[i] = sums[i] + more[i];
                        }
                    } else {
                        sums[0] = residual == nullptr ? group_dot<P>(weights, blocks, x, t)
                                                      : group_dot<P>(weights, blocks, x, rest, t);
                    }
                    for (std::size_t i = 0; i < tokens; ++i, ++t)
                        store_rows(sums[i], group.begin, group.end, false, out + (t0 + t) * y_stride);
                }
            }
        });
}

[[maybe_unused]] void packed_gemm(Packing packing, const void* packed, std::size_t row_begin, std::size_t row_end,
                                  std::size_t cols, const void* activations, const void* residual, std::size_t n_tokens,
                                  float* y, std::size_t y_stride) {
    visit_packing(packing, [&](auto pack) {
        gemm_packing<decltype(pack)>(static_cast<const Byte*>(packed), row_begin, row_end, packed_blocks(cols),
                                     static_cast<const Byte*>(activations), static_cast<const Byte*>(residual),
                                     n_tokens, y, y_stride);
    });
}

// ---- activations

HETERO_INLINE F32x16 load_up_to_16(const float* x, std::size_t n) { return n >= 16 ? load(x) : load(x, n); }
HETERO_INLINE void store_up_to_16(float* x, F32x16 v, std::size_t n) {
    if (n >= 16) return store(x, v);
    store(x, v, n);
}

void quantize_activations(const float* x, std::size_t x_stride, std::size_t n_tokens, std::size_t cols, void* out,
                          float* residual) {
    const std::size_t blocks = packed_blocks(cols);
    for (std::size_t t = 0; t < n_tokens; ++t, x += x_stride) {
        const std::size_t first_token = t / activation_tile * activation_tile, left_tokens = n_tokens - first_token;
        const std::size_t count = left_tokens < activation_tile ? left_tokens : activation_tile;
        const std::size_t i = t - first_token;
        Byte* block = static_cast<Byte*>(out) + first_token * blocks * activation_block_bytes;
        for (std::size_t b = 0; b < blocks; ++b, block += count * activation_block_bytes) {
            const std::size_t first = b * packed_cols, left = cols - first;
            const F32x16 v0 = load_up_to_16(x + first, left);
            const F32x16 v1 = left > 16 ? load_up_to_16(x + first + 16, left - 16) : zero();
            const F32x16 a0 = abs(v0), a1 = abs(v1);
            const bool finite = sum((a0 - a0) + (a1 - a1)) == 0;  // infinity and NaN give NaN
            const float largest = max_lane(max(a0, a1));
            const bool nothing = largest < 0x1p-100F;
            const F32x16 inverse = splat(finite && !nothing ? 127 / largest : 0);
            const I32x16 nil = splat_int(0);
            const I32x16 q0 = finite ? round_to_int(v0 * inverse) : nil, q1 = finite ? round_to_int(v1 * inverse) : nil;
            const U8x16 bytes0 = narrow(q0), bytes1 = narrow(q1);
            std::memcpy(block + i * packed_cols, &bytes0, 16);
            std::memcpy(block + i * packed_cols + 16, &bytes1, 16);
            const float total = sum(to_float(q0 + q1));  // of integers below 2^24: exact
            const auto whole = static_cast<std::int32_t>(total);
            const float scale = !finite ? __builtin_nanf("") : nothing ? 0 : largest / 127, weighted = scale * total;
            if (residual) {
                const F32x16 r0 = fma(splat(-scale), to_float(q0), v0), r1 = fma(splat(-scale), to_float(q1), v1);
                float* r = residual + t * cols + first;
                store_up_to_16(r, r0, left);
                if (left > 16) store_up_to_16(r + 16, r1, left - 16);
            }
            Byte* numbers = block + count * packed_cols + 4 * i;
            std::memcpy(numbers, &scale, 4);
            std::memcpy(numbers + 4 * count, &weighted, 4);
            std::memcpy(numbers + 8 * count, &whole, 4);
        }
    }
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
