// Products of packed weights (api/packed.h) and 8-bit activations. A lane is a row: no sum across lanes is ever needed,
// and the order of summation, block by block, is the same for any number of tokens and every instruction set.
// Included after vec_*.h, dot_*.h and math.h, once per instruction set.
#pragma once
#include "kernels/cpu/packing.h"

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

// ---- many tokens: a block's codes are unpacked once and stay in registers while the tokens pass by

constexpr int kGroups = kParts == 1 ? 2 : 1;  // multiplied together: an activation is loaded once for all of them
constexpr std::size_t kTokensAtOnce = 64;     // whose sums lie in the L1 cache

template <class Visit>
HETERO_INLINE void for_tiles(const Byte* activations, std::size_t n_tokens, std::size_t blocks, Visit visit) {
    for (std::size_t t = 0; t < n_tokens; t += activation_tile) {
        const std::size_t left = n_tokens - t;
        visit(
            Tokens{activations + t * blocks * activation_block_bytes, left < activation_tile ? left : activation_tile},
            t);
    }
}

template <int G>
using Sums = float[kTokensAtOnce][G][packed_rows];

// sums[t][g] += D[b] * scale_w[b] * scale_x[b] over the blocks b of G groups, rows of one part. Memory is asked for the
// `following` bytes of weights meanwhile.
template <class P, int G>
HETERO_INLINE void add_dots(const Byte* weights, std::size_t blocks, std::size_t following, int part,
                            const Byte* activations, std::size_t n_tokens, Sums<G>& sums) {
    constexpr std::size_t kStep = G * P::kBlockBytes;
    const std::size_t row = static_cast<std::size_t>(part) * (kWordBytes / 4);
    for (std::size_t b = 0; b < blocks; ++b) {
        for (std::size_t i = b * kStep; i < (b + 1) * kStep && i < following; i += 64)
            __builtin_prefetch(weights + blocks * kStep + i, 0, 2);
        Words codes[G][8];
        Part scale[G];
#pragma GCC unroll 2
        for (int g = 0; g < G; ++g) {
            const Byte* block = weights + (static_cast<std::size_t>(g) * blocks + b) * P::kBlockBytes;
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) codes[g][j] = P::codes(block, j, part);
            scale[g] = part_f16(block + P::kCodeBytes + 2 * row);
        }
        for_tiles(
            activations, n_tokens, blocks, [&](const Tokens& x, std::size_t t0) __attribute__((always_inline)) {
                const Byte* q = x.block(b);
                const Factors factors(q, x.count);
#pragma GCC unroll 1
                for (std::size_t t = 0; t < x.count; ++t, q += packed_cols) {
                    Words dots[G];
#pragma GCC unroll 2
                    for (int g = 0; g < G; ++g) dots[g] = words_splat((P::kTaken - P::kZero) * factors.sum[t]);
#pragma GCC unroll 8
                    for (int j = 0; j < 8; ++j) {
                        const Words columns = four_columns(q, j);
#pragma GCC unroll 2
                        for (int g = 0; g < G; ++g) dots[g] = P::dot(dots[g], codes[g][j], columns);
                    }
                    const Part of_token = part_splat(factors.scale[t]);
#pragma GCC unroll 2
                    for (int g = 0; g < G; ++g) {
                        float* sum = sums[t0 + t][g] + row;
                        part_store(sum,
                                   part_fma(words_to_float(dots[g]), part_mul(scale[g], of_token), part_load(sum)));
                    }
                }
            });
    }
}

// sums[t][g] += the sum of min_w[b] * weighted_x[b], for N tokens from `first` of a tile.
template <class P, int G, int N>
HETERO_INLINE void add_low(const Byte* weights, std::size_t blocks, int part, const Tokens& x, std::size_t first,
                           float (*sums)[G][packed_rows]) {
    const std::size_t row = static_cast<std::size_t>(part) * (kWordBytes / 4);
    const Byte* mins = weights + P::kCodeBytes + 32 + 2 * row;
    Part low[N][G];
#pragma GCC unroll 8
    for (int t = 0; t < N; ++t)
#pragma GCC unroll 2
        for (int g = 0; g < G; ++g) low[t][g] = part_zero();
    for (std::size_t b = 0; b < blocks; ++b, mins += P::kBlockBytes) {
        const Factors factors(x.block(b) + 4 * first, x.count);
        Part min[G];
#pragma GCC unroll 2
        for (int g = 0; g < G; ++g) min[g] = part_f16(mins + static_cast<std::size_t>(g) * blocks * P::kBlockBytes);
#pragma GCC unroll 8
        for (int t = 0; t < N; ++t) {
            const Part of_token = part_splat(factors.weighted[t]);
#pragma GCC unroll 2
            for (int g = 0; g < G; ++g) low[t][g] = part_fma(min[g], of_token, low[t][g]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < N; ++t)
#pragma GCC unroll 2
        for (int g = 0; g < G; ++g) part_store(sums[t][g] + row, part_add(part_load(sums[t][g] + row), low[t][g]));
}
template <class P, int G, int N = 8>
HETERO_INLINE void add_lows(const Byte* weights, std::size_t blocks, int part, const Tokens& x, std::size_t first,
                            float (*sums)[G][packed_rows]) {
    for (; first + N <= x.count; first += N) add_low<P, G, N>(weights, blocks, part, x, first, sums + first);
    if constexpr (N > 1) add_lows<P, G, N / 2>(weights, blocks, part, x, first, sums);
}

// Up to kTokensAtOnce tokens and G groups, rows [row_begin, row_end) of them, which y[t][0] begins with.
template <class P, int G>
void multiply_groups(const Byte* weights, std::size_t blocks, std::size_t following, const Byte* activations,
                     std::size_t n_tokens, std::size_t row_begin, std::size_t row_end, bool add, float* y,
                     std::size_t y_stride) {
    alignas(64) Sums<G> sums;
    for (std::size_t t = 0; t < n_tokens; ++t)
        for (int g = 0; g < G; ++g) store(sums[t][g], zero());
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
        add_dots<P, G>(weights, blocks, part == 0 ? following : 0, part, activations, n_tokens, sums);
        if constexpr (P::kMin)
            for_tiles(
                activations, n_tokens, blocks, [&](const Tokens& x, std::size_t t0) __attribute__((always_inline)) {
                    add_lows<P, G>(weights, blocks, part, x, 0, sums + t0);
                });
    }
    for (std::size_t t = 0; t < n_tokens; ++t)
        for_groups(
            row_begin, row_end, [&](const Group& group) __attribute__((always_inline)) {
                store_rows(load(sums[t][group.index]), group.begin, group.end, add,
                           y + t * y_stride + group.index * packed_rows);
            });
}

template <class P>
void gemm_tokens(const Byte* packed, std::size_t row_begin, std::size_t row_end, std::size_t blocks,
                 const Byte* activations, const Byte* residual, std::size_t n_tokens, float* y, std::size_t y_stride) {
    const std::size_t group_bytes = blocks * P::kBlockBytes;
    for (std::size_t t = 0; t < n_tokens; t += kTokensAtOnce) {
        const std::size_t count = n_tokens - t < kTokensAtOnce ? n_tokens - t : kTokensAtOnce;
        for (std::size_t row = row_begin; row < row_end;) {
            const std::size_t group = row / packed_rows, first = group * packed_rows, left = row_end - first;
            const bool all = left > (kGroups - 1) * packed_rows;
            const std::size_t most = (all ? kGroups : 1) * packed_rows, end = left < most ? left : most;
            const std::size_t then = left - end < most ? (left - end + packed_rows - 1) / packed_rows : kGroups;
            const auto multiply = [&](const Byte* x, std::size_t following, bool add) __attribute__((always_inline)) {
                (all ? multiply_groups<P, kGroups>
                     : multiply_groups<P, 1>)(packed + group * group_bytes, blocks, following,
                                              x + t * blocks * activation_block_bytes, count, row - first, end, add,
                                              y + t * y_stride + first, y_stride);
            };
            multiply(activations, then * group_bytes, false);
            if (residual != nullptr) multiply(residual, 0, true);
            row = first + end;
        }
    }
}

template <class P>
void gemm_packing(const Byte* packed, std::size_t row_begin, std::size_t row_end, std::size_t blocks,
                  const Byte* activations, const Byte* residual, std::size_t n_tokens, float* y, std::size_t y_stride) {
    if (n_tokens > 1)
        return gemm_tokens<P>(packed, row_begin, row_end, blocks, activations, residual, n_tokens, y, y_stride);
    for_groups(
        row_begin, row_end, [&](const Group& group) __attribute__((always_inline)) {
            const Byte* weights = packed + group.index * blocks * P::kBlockBytes;
            const Tokens x{activations, 1}, rest{residual, 1};
            const F32x16 sum =
                residual == nullptr ? group_dot<P>(weights, blocks, x, 0) : group_dot<P>(weights, blocks, x, rest, 0);
            store_rows(sum, group.begin, group.end, false, y + group.index * packed_rows);
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

constexpr float kNothing = 0x1p-100F;       // blocks of less become zeros
constexpr std::size_t kTokensForLanes = 6;  // of a tile, from which on work for all 16 lanes is worth it

HETERO_INLINE F32x16 load_up_to_16(const float* x, std::size_t n) { return n >= 16 ? load(x) : load(x, n); }
HETERO_INLINE void store_up_to_16(float* x, F32x16 v, std::size_t n) {
    if (n >= 16) return store(x, v);
    store(x, v, n);
}

// 32 columns of a token; those from `left` on are zero.
HETERO_INLINE void load_block(const float* x, std::size_t left, F32x16 (&v)[2]) {
    v[0] = load_up_to_16(x, left);
    v[1] = left > 16 ? load_up_to_16(x + 16, left - 16) : zero();
}
HETERO_INLINE void store_residual(float* r, std::size_t left, const F32x16 (&v)[2], const I32x16* q, float scale) {
    const F32x16 minus = splat(-scale);
    store_up_to_16(r, fma(minus, to_float(q[0]), v[0]), left);
    if (left > 16) store_up_to_16(r + 16, fma(minus, to_float(q[1]), v[1]), left - 16);
}

// A block of token i of the `count` in a tile. `residual`: null, or where its columns go.
HETERO_INLINE void quantize_one(const float* x, std::size_t left, std::size_t i, std::size_t count, Byte* block,
                                float* residual) {
    F32x16 v[2];
    load_block(x, left, v);
    const F32x16 a0 = abs(v[0]), a1 = abs(v[1]);
    const bool finite = sum((a0 - a0) + (a1 - a1)) == 0;  // infinity and NaN give NaN
    const float largest = max_lane(max(a0, a1));
    const bool nothing = largest < kNothing;
    const F32x16 inverse = splat(finite && !nothing ? 127 / largest : 0);
    const I32x16 nil = splat_int(0);
    const I32x16 q[] = {finite ? round_to_int(v[0] * inverse) : nil, finite ? round_to_int(v[1] * inverse) : nil};
    store_codes<true, 0, 2>(block + i * packed_cols, q);
    const float total = sum(to_float(q[0] + q[1]));  // of integers below 2^24: exact
    const auto whole = static_cast<std::int32_t>(total);
    const float scale = !finite ? __builtin_nanf("") : nothing ? 0 : largest / 127, weighted = scale * total;
    if (residual) store_residual(residual, left, v, q, scale);
    Byte* numbers = block + count * packed_cols + 4 * i;
    std::memcpy(numbers, &scale, 4);
    std::memcpy(numbers + 4 * count, &weighted, 4);
    std::memcpy(numbers + 8 * count, &whole, 4);
}

// The same of all tokens of a tile, whose maxima and sums are lanes; false, and nothing done, where one is not finite.
HETERO_INLINE bool quantize_tile(const float* x, std::size_t x_stride, std::size_t left, std::size_t count, Byte* block,
                                 float* residual, std::size_t residual_stride) {
    F32x16 lanes[activation_tile], v[2], not_finite = zero();
#pragma GCC unroll 16
    for (std::size_t t = 0; t < activation_tile; ++t) {
        lanes[t] = zero();
        if (t >= count) continue;
        load_block(x + t * x_stride, left, v);
        const F32x16 a0 = abs(v[0]), a1 = abs(v[1]);
        not_finite = not_finite + ((a0 - a0) + (a1 - a1));
        lanes[t] = max(a0, a1);
    }
    if (sum(not_finite) != 0) return false;
    transpose(lanes);
    F32x16 largest = lanes[0];
#pragma GCC unroll 16
    for (std::size_t c = 1; c < 16; ++c) largest = max(largest, lanes[c]);
    const F32x16 nothing = splat(kNothing);
    const F32x16 scale = where_less(largest, nothing, zero(), largest / splat(127));
    float scales[16], inverses[16];
    store(scales, scale);
    store(inverses, where_less(largest, nothing, zero(), splat(127) / largest));
#pragma GCC unroll 8
    for (std::size_t t = 0; t < count; t += 2) {  // pairs of tokens, as far as there are two
        const std::size_t tokens = count - t < 2 ? 1 : 2;
        I32x16 q[4];
        for (std::size_t i = 0; i < tokens; ++i) {
            load_block(x + (t + i) * x_stride, left, v);
            const F32x16 inverse = splat(inverses[t + i]);
            q[2 * i] = round_to_int(v[0] * inverse);
            q[2 * i + 1] = round_to_int(v[1] * inverse);
            lanes[t + i] = to_float(q[2 * i] + q[2 * i + 1]);
            if (residual) store_residual(residual + (t + i) * residual_stride, left, v, q + 2 * i, scales[t + i]);
        }
        tokens == 2 ? store_codes<true, 0, 4>(block + t * packed_cols, q)
                    : store_codes<true, 0, 2>(block + t * packed_cols, q);
    }
    transpose(lanes);
    F32x16 total = lanes[0];
#pragma GCC unroll 16
    for (std::size_t c = 1; c < 16; ++c) total = total + lanes[c];  // of integers below 2^24: exact
    auto* numbers = reinterpret_cast<float*>(block + count * packed_cols);
    store_up_to_16(numbers, scale, count);
    store_up_to_16(numbers + count, scale * total, count);
    const I32x16 whole = truncate_to_int(total);
    std::memcpy(numbers + 2 * count, &whole, 4 * count);
    return true;
}

void quantize_activations(const float* x, std::size_t x_stride, std::size_t n_tokens, std::size_t cols, void* out,
                          float* residual) {
    const std::size_t blocks = packed_blocks(cols);
    for (std::size_t first = 0; first < n_tokens; first += activation_tile) {
        const std::size_t left_tokens = n_tokens - first;
        const std::size_t count = left_tokens < activation_tile ? left_tokens : activation_tile;
        Byte* block = static_cast<Byte*>(out) + first * blocks * activation_block_bytes;
        for (std::size_t b = 0; b < blocks; ++b, block += count * activation_block_bytes) {
            const std::size_t col = b * packed_cols, left = cols - col;
            const float* in = x + first * x_stride + col;
            float* rest = residual ? residual + first * cols + col : nullptr;
            const bool whole = count == activation_tile && left >= packed_cols;
            if (whole ? quantize_tile(in, x_stride, packed_cols, activation_tile, block, rest, cols)
                      : count >= kTokensForLanes && quantize_tile(in, x_stride, left, count, block, rest, cols))
                continue;
            for (std::size_t i = 0; i < count; ++i)
                quantize_one(in + i * x_stride, left, i, count, block, rest ? rest + i * cols : nullptr);
        }
    }
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
