// AVX-512 with VNNI and BF16: from Cooper Lake (2020) and Zen 4 (2022). Attention of a chunk of queries, see
// row_attention.h: scores are products of integers of 16 bits, values are added in bf16.
//
// A query and a key are rounded to multiples of their length / 32000. No sum of their products leaves 32 bits then, in
// whatever order (Cauchy and Schwarz), and the 16 rows of a tile need one product with each pair of a key's dims.
#define HETERO_ISA avx512_bf16
#include "kernels/cpu/vec_avx512.h"
//
#include "kernels/cpu/math.h"
//
#include "kernels/cpu/bf16.h"
//
#include "kernels/cpu/row_attention.h"

namespace hetero::kernels::avx512_bf16 {
namespace {

constexpr float kLength = 32000;

HETERO_INLINE __m512i splat_word(const Byte* p) {
    std::int32_t word;
    std::memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
}

HETERO_INLINE __m512i dot(__m512i sum, __m512i a, __m512i b) { return _mm512_dpwssd_epi32(sum, a, b); }
HETERO_INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// sums[i] of 16 rows += rows * columns[i], over `pairs` pairs: rows [pair][row][2], columns 64 bytes apart [pair][2].
template <class Sum>
HETERO_INLINE void add_products(Sum (&sums)[16], const Byte* rows, const Byte* columns, std::size_t pairs) {
    for (std::size_t pair = 0; pair < pairs; ++pair) {
        const __m512i row = _mm512_load_si512(rows + 64 * pair);
#pragma GCC unroll 16
        for (std::size_t i = 0; i < 16; ++i) sums[i] = dot(sums[i], row, splat_word(columns + 64 * i + 4 * pair));
    }
}

// What a vector is multiplied by to have the length kLength, and the reverse.
struct Length {
    float to_integers, from_integers;
};
// load(i): 16 values, zeros beyond the end. NaN where one is not finite; zeros stay zeros.
template <class Load>
HETERO_INLINE Length length_of(std::size_t runs, Load load) {
    __m512 top = _mm512_setzero_ps(), poison = _mm512_setzero_ps();
    for (std::size_t i = 0; i < runs; ++i) {
        const __m512 x = load(i);
        top = _mm512_max_ps(top, _mm512_abs_ps(x));
        poison = _mm512_add_ps(poison, _mm512_sub_ps(x, x));
    }
    if (_mm512_cmp_ps_mask(poison, poison, _CMP_UNORD_Q) != 0) return {0, __builtin_nanf("")};
    const float largest = _mm512_reduce_max_ps(top);
    if (largest < 0x1p-100F) return {0, 1};
    const __m512 inverse = _mm512_set1_ps(1 / largest);
    __m512 squares = _mm512_setzero_ps();
    for (std::size_t i = 0; i < runs; ++i) {
        const __m512 x = _mm512_mul_ps(load(i), inverse);
        squares = _mm512_fmadd_ps(x, x, squares);
    }
    const auto root = static_cast<float>(square_root(static_cast<double>(sum(F32x16{{squares}}))));
    return {kLength / root / largest, largest * root / kLength};
}

// Each of 16 lanes of 16 vectors combined, as the tree of sum(), to a lane for each vector. v[4 * i + j] is vector
// 4 * j + i.
template <class Combine>
HETERO_INLINE __m512 fold(__m512 (&v)[16], Combine combine) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
        v[i] = combine(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x44),
                       _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xEE));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        v[i] = combine(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x88),
                       _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xDD));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m512d a = _mm512_castps_pd(v[2 * i]), b = _mm512_castps_pd(v[2 * i + 1]);
        v[i] = combine(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    return combine(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xDD));
}

// The same as length_of() of 16 keys from `first` on, a lane for each.
struct Lengths {
    __m512 to_integers, from_integers;
};
template <class Rows>
HETERO_INLINE Lengths lengths_of(const Rows& rows, std::size_t first, std::size_t runs) {
    const auto key = [first](std::size_t i) { return first + i % 4 * 4 + i / 4; };  // as fold() wants them
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF), infinite = _mm512_set1_epi32(0x7F800000);
    __m512 v[16] = {};
    for (std::size_t run = 0; run < runs; ++run)
#pragma GCC unroll 16
        for (std::size_t i = 0; i < 16; ++i) {
            const __m512i bits = _mm512_and_si512(_mm512_castps_si512(rows.value(key(i), run)), magnitude);
            v[i] = _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(v[i]), bits));
        }
    const __m512 largest = fold(
        v, [](__m512 a, __m512 b) __attribute__((always_inline)) {
            return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
        });
    const __m512 one = _mm512_set1_ps(1);
    const __mmask16 poisoned = _mm512_cmpge_epi32_mask(_mm512_castps_si512(largest), infinite),
                    usual = static_cast<__mmask16>(_mm512_cmp_ps_mask(largest, _mm512_set1_ps(0x1p-100F), _CMP_GE_OQ) &
                                                   ~poisoned);
    const __m512 scale = _mm512_mask_mov_ps(one, usual, largest);
    alignas(64) float inverses[16];
    _mm512_store_ps(inverses, _mm512_div_ps(one, scale));
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; ++i) v[i] = _mm512_setzero_ps();
    for (std::size_t run = 0; run < runs; ++run)
#pragma GCC unroll 16
        for (std::size_t i = 0; i < 16; ++i) {
            const __m512 x = _mm512_mul_ps(rows.value(key(i), run), _mm512_set1_ps(inverses[key(i) - first]));
            v[i] = _mm512_fmadd_ps(x, x, v[i]);
        }
    const __m512 squares = fold(
        v, [](__m512 a, __m512 b) __attribute__((always_inline)) { return _mm512_add_ps(a, b); });
    const __m512 root = _mm512_sqrt_ps(squares), whole = _mm512_set1_ps(kLength);
    const __m512 from = _mm512_div_ps(_mm512_mul_ps(scale, root), whole);
    return {_mm512_maskz_div_ps(usual, _mm512_div_ps(whole, root), scale),
            _mm512_mask_mov_ps(_mm512_mask_mov_ps(one, usual, from), poisoned, _mm512_set1_ps(__builtin_nanf("")))};
}

// 32 values to integers.
HETERO_INLINE __m512i to_integers(__m512 a, __m512 b, __m512 factor) {
    const __m256i low = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(a, factor)));
    const __m256i high = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(b, factor)));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// 16 queries from row `first` on, as far as there are n; zeros for the others.
struct QueryRows {
    const float* rows[kRows];
    std::size_t dims;

    QueryRows(const AttentionArgs& a, std::size_t first, std::size_t n) : dims(a.head_dim_k) {
        for (std::size_t i = 0; i < kRows; ++i) {
            const std::size_t row = first + i;
            rows[i] = i < n ? a.q + row / a.n_heads * a.q_stride + row % a.n_heads * a.q_head_stride : nullptr;
        }
    }
    [[nodiscard]] HETERO_INLINE __m512 value(std::size_t i, std::size_t run) const {
        return rows[i] == nullptr ? _mm512_setzero_ps() : Reader<DType::f32, false>::load_16(rows[i], 16 * run, dims);
    }
};

struct Nothing {
    HETERO_INLINE void begin(std::size_t) {}
    HETERO_INLINE void some() {}
    HETERO_INLINE void finish() {}
};

// Of K, [key tile][step][key][32 dims], and of Q, [step][pair][row][2], the rest are the factors of keys and rows.
struct VectorProducts {
    static constexpr std::size_t kFewRows = 8;
    static void attend_few(const Work& work);

    template <class Reader>
    static void load_keys(const Page& k, std::size_t keys, std::size_t dims, const Plan& plan, Byte* scratch) {
        const KeyRows<Reader> rows(k, keys, dims);
        auto* factors = reinterpret_cast<float*>(scratch + plan.k_rest);
        for (std::size_t first = 0; first < kPage; first += 16) {
            const Lengths lengths = lengths_of(rows, first, 2 * plan.k_steps);
            _mm512_store_ps(factors + first, lengths.from_integers);
            alignas(64) float to[16];
            _mm512_store_ps(to, lengths.to_integers);
            for (std::size_t step = 0; step < plan.k_steps; ++step)
                for (std::size_t i = 0; i < 16; ++i)
                    _mm512_store_si512(scratch + (first / 16 * plan.k_steps + step) * kTile + 64 * i,
                                       to_integers(rows.value(first + i, 2 * step), rows.value(first + i, 2 * step + 1),
                                                   _mm512_set1_ps(to[i])));
        }
    }

    static void load_queries(const AttentionArgs& a, std::size_t first_row, std::size_t n, const Plan& plan,
                             Byte* tile) {
        const QueryRows queries(a, first_row, n);
        const Lengths lengths = lengths_of(queries, 0, 2 * plan.k_steps);
        _mm512_store_ps(tile + plan.q_rest, lengths.from_integers);
        alignas(64) float to[kRows];
        _mm512_store_ps(to, lengths.to_integers);
        for (std::size_t step = 0; step < plan.k_steps; ++step) {
            __m512i rows[16];
            for (std::size_t i = 0; i < 16; ++i)
                rows[i] =
                    to_integers(queries.value(i, 2 * step), queries.value(i, 2 * step + 1), _mm512_set1_ps(to[i]));
            transpose(rows);
            for (std::size_t i = 0; i < 16; ++i) _mm512_store_si512(tile + step * kTile + 64 * i, rows[i]);
        }
    }

    static void attend_page(const Work& work, std::size_t page, std::size_t first_tile, std::size_t last_tile) {
        const AttentionArgs& a = work.a;
        const Plan& plan = work.plan;
        auto* const scores = reinterpret_cast<float*>(work.scratch + plan.scores);
        Byte* const weights = work.scratch + plan.weights;
        Nothing nothing;
        for (std::size_t tile = first_tile; tile < last_tile; ++tile) {
            const Byte* q = work.tile_at(tile);
            const std::size_t seen = smaller(kPage, work.end_of(work.last_row(tile)) - page * kPage);
            const std::size_t key_tiles = (seen + 15) / 16;
            for (std::size_t t = 0; t < key_tiles; ++t) score(q, plan, work.scratch, t, scores + 16 * 16 * t);
            __m512 factor = _mm512_load_ps(reinterpret_cast<const float*>(q + plan.q_rest)) * _mm512_set1_ps(a.scale);
            if (a.softcap > 0) {
                cap_scores(scores, kPage * kRows, factor, a.softcap);
                factor = _mm512_set1_ps(1);
            }
            factor = factor * _mm512_set1_ps(kLog2E);
            State& state = work.state_of(tile);
            const __m512 correction = work.sees_all(tile, page)
                                          ? weigh_keys<false>(state, page, factor, scores, weights, nothing)
                                          : weigh_keys<true>(state, page, factor, scores, weights, nothing);
            for (std::size_t t = 0; t < plan.v_tiles; ++t)
                add_values(weights, work.scratch + plan.v + 2 * t * kTile, key_tiles, correction,
                           work.tile_at(tile) + plan.out + t * kTile);
        }
    }

private:
    // scores [key][row] of 16 keys, without the rows' factors.
    static void score(const Byte* q, const Plan& plan, const Byte* scratch, std::size_t key_tile, float* scores) {
        const Byte* keys = scratch + key_tile * plan.k_steps * kTile;
        const float* factors = reinterpret_cast<const float*>(scratch + plan.k_rest) + 16 * key_tile;
        __m512i sums[16] = {};
        for (std::size_t step = 0; step < plan.k_steps; ++step)
            add_products(sums, q + step * kTile, keys + step * kTile, 16);
#pragma GCC unroll 16
        for (std::size_t i = 0; i < 16; ++i)
            _mm512_store_ps(scores + 16 * i, _mm512_cvtepi32_ps(sums[i]) * _mm512_set1_ps(factors[i]));
    }

    // out [dim][row] of 16 dims = out * correction + the values of the first key tiles of 16, weighed.
    static void add_values(const Byte* weights, const Byte* values, std::size_t key_tiles, __m512 correction,
                           Byte* out) {
        __m512 sums[16];
        auto* const at = reinterpret_cast<float*>(out);
#pragma GCC unroll 16
        for (std::size_t i = 0; i < 16; ++i) sums[i] = _mm512_load_ps(at + 16 * i) * correction;
        add_products(sums, weights, values, smaller(16, 8 * key_tiles));
        if (key_tiles > 2) add_products(sums, weights + kTile, values + kTile, 8 * key_tiles - 16);
#pragma GCC unroll 16
        for (std::size_t i = 0; i < 16; ++i) _mm512_store_ps(at + 16 * i, sums[i]);
    }
};

}  // namespace
}  // namespace hetero::kernels::avx512_bf16

#include "kernels/cpu/few_rows.h"

namespace hetero::kernels::avx512_bf16 {

void VectorProducts::attend_few(const Work& work) { FewRows(work).run(); }

void prefill_attention(const AttentionArgs& args) { attend<VectorProducts>(args); }

}  // namespace hetero::kernels::avx512_bf16
