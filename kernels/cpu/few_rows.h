// Attention of up to eight rows in prefill's arithmetic: a lane is a key or a dim here, as 16 rows would be mostly
// empty. Bits are those of a row among many: scores are exact sums of integers, weights and values are added in the
// same order. Included by avx512_bf16.cpp, after VectorProducts.
#pragma once
#include "kernels/cpu/row_attention.h"

namespace hetero::kernels::HETERO_ISA {
namespace {

// K lies as [step][pair][key tile][key][2], Q as [row][step][pair][2], dims of a step in the order of pack_integers();
// scores are [row][key], weights [row][pair of keys][2], the output is [row][dim].
class FewRows {
public:
    explicit FewRows(const Work& work)
        : work_(work),
          plan_(work.plan),
          keys_(work.scratch),
          key_factors_(reinterpret_cast<float*>(work.scratch + plan_.k_rest)),
          scores_(reinterpret_cast<float*>(work.scratch + plan_.scores)),
          weights_(work.scratch + plan_.weights),
          queries_(work.tile_at(0)),
          query_factors_(reinterpret_cast<float*>(queries_ + plan_.q_rest)),
          out_(reinterpret_cast<float*>(queries_ + plan_.out)) {}

    void run() {
        const AttentionArgs& a = work_.a;
        load_queries();
        for (std::size_t i = 0; i < work_.n * row_floats(); i += 16) _mm512_store_ps(out_ + i, _mm512_setzero_ps());
        max_ = _mm512_set1_ps(-__builtin_inff());
        sum_ = _mm512_setzero_ps();
        work_.for_pages([&](std::size_t page, std::size_t keys) {
            const std::byte* wide = nullptr;
            const Page k = work_.in_floats(a.k, page, keys, a.head_dim_k, wide);
            visit_reader(k.view.dtype, keys == kPage && a.head_dim_k % 32 == 0,
                         [&](auto reader) { load_keys<decltype(reader)>(k, keys, page); });
            weigh(page);
            const Page v = work_.in_floats(a.v, page, keys, a.head_dim_v, wide);
            const std::size_t seen = smaller(kPage, work_.end_of(work_.n - 1) - page * kPage),
                              pairs = (seen + 15) / 16 * 8;
            visit_reader(v.view.dtype, keys == kPage && a.head_dim_v % 16 == 0,
                         [&](auto reader) { add_values<decltype(reader)>(v, keys, pairs); });
        });
        write();
    }

private:
    static constexpr std::size_t kTogether = 4;  // rows

    [[nodiscard]] std::size_t row_floats() const { return 16 * plan_.v_tiles; }

    // visit(Count<n>) of 1 to 4.
    template <std::size_t N>
    struct Count {
        static constexpr std::size_t value = N;
    };
    template <class Visit>
    static HETERO_INLINE void visit_count(std::size_t n, Visit visit) {
        if (n == 1) return visit(Count<1>());
        if (n == 2) return visit(Count<2>());
        if (n == 3) return visit(Count<3>());
        visit(Count<4>());
    }
    // visit(first row, Count<n>).
    template <class Visit>
    HETERO_INLINE void for_rows(Visit visit) const {
        for (std::size_t row = 0; row < work_.n; row += kTogether)
            visit_count(smaller(kTogether, work_.n - row), [&](auto count) { visit(row, count); });
    }

    static HETERO_INLINE __m512i pack_integers(__m512 a, __m512 b, __m512 factor) {
        return _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(a, factor)),
                                  _mm512_cvtps_epi32(_mm512_mul_ps(b, factor)));
    }

    void load_queries() {
        const AttentionArgs& a = work_.a;
        _mm512_store_ps(query_factors_, _mm512_setzero_ps());
        for (std::size_t i = 0; i < work_.n; ++i) {
            const std::size_t row = work_.first_row + i;
            const float* q = a.q + row / a.n_heads * a.q_stride + row % a.n_heads * a.q_head_stride;
            const auto value = [&](std::size_t run) __attribute__((always_inline)) {
                return Reader<DType::f32, false>::load_16(q, 16 * run, a.head_dim_k);
            };
            const Length length = length_of(2 * plan_.k_steps, value);
            query_factors_[i] = length.from_integers;
            for (std::size_t step = 0; step < plan_.k_steps; ++step)
                _mm512_store_si512(
                    queries_ + (i * plan_.k_steps + step) * 64,
                    pack_integers(value(2 * step), value(2 * step + 1), _mm512_set1_ps(length.to_integers)));
        }
    }

    // Memory is what this waits for: the values of the page and the keys of the next one are asked for meanwhile.
    static void fetch(const KvView& view, std::size_t page, std::size_t tile) {
        if (!is_float(view)) return;
        const std::size_t bytes = 16 * dtype_bytes(view.dtype, view.token_stride);
        const std::byte* rows = view.pages[page] + view.offset + tile * bytes;
        for (std::size_t at = 0; at < bytes; at += 64)
            _mm_prefetch(reinterpret_cast<const char*>(rows + at), _MM_HINT_T0);
    }

    template <class Reader>
    void load_keys(const Page& k, std::size_t keys, std::size_t page) {
        const KeyRows<Reader> rows(k, keys, work_.a.head_dim_k);
        const bool more = (page + 1) * kPage < work_.end_of(work_.n - 1);
        for (std::size_t tile = 0; tile < kKeyTiles; ++tile) {
            fetch(work_.a.v, page, tile);
            if (more) fetch(work_.a.k, page + 1, tile);
            const Lengths lengths = lengths_of(rows, 16 * tile, 2 * plan_.k_steps);
            _mm512_store_ps(key_factors_ + 16 * tile, lengths.from_integers);
            alignas(64) float to[16];
            _mm512_store_ps(to, lengths.to_integers);
            for (std::size_t step = 0; step < plan_.k_steps; ++step) {
                __m512i words[16];
#pragma GCC unroll 16
                for (std::size_t i = 0; i < 16; ++i)
                    words[i] = pack_integers(rows.value(16 * tile + i, 2 * step),
                                             rows.value(16 * tile + i, 2 * step + 1), _mm512_set1_ps(to[i]));
                transpose(words);
                Byte* at = keys_ + step * kKeyTiles * kTile + 64 * tile;
#pragma GCC unroll 16
                for (std::size_t i = 0; i < 16; ++i) _mm512_store_si512(at + 64 * kKeyTiles * i, words[i]);
            }
        }
    }

    // Which of 16 keys of a page row sees.
    [[nodiscard]] HETERO_INLINE __mmask16 in_sight(std::size_t row, std::size_t key) const {
        const std::size_t begin = work_.begin_of(row), end = work_.end_of(row);
        const std::size_t from = begin <= key ? 0 : smaller(begin - key, 16);
        const std::size_t to = end <= key ? 0 : smaller(end - key, 16);
        return static_cast<__mmask16>(first(to) & ~first(from));
    }

    void weigh(std::size_t page) {
        const AttentionArgs& a = work_.a;
        for_rows([&](std::size_t row, auto count) { score<count.value>(row); });
        const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
        __m512 factor = _mm512_load_ps(query_factors_) * _mm512_set1_ps(a.scale);
        alignas(64) float factors[16], of_rows[16];  // of_rows: maxima, then shifts, then sums
        if (a.softcap > 0) {
            _mm512_store_ps(factors, factor);
            for (std::size_t row = 0; row < work_.n; ++row)
                cap_scores(scores_ + kPage * row, kPage, _mm512_set1_ps(factors[row]), a.softcap);
            factor = _mm512_set1_ps(1);
        }
        factor = factor * _mm512_set1_ps(kLog2E);
        _mm512_store_ps(of_rows, lowest);
        for (std::size_t row = 0; row < work_.n; ++row) {
            __m512 top = lowest;
            for (std::size_t key = 0; key < kPage; key += 16)
                top = _mm512_mask_max_ps(top, in_sight(row, page * kPage + key), top,
                                         _mm512_load_ps(scores_ + kPage * row + key));
            of_rows[row] = _mm512_reduce_max_ps(top);
        }
        const Shift shift = shift_to(max_, _mm512_mul_ps(_mm512_load_ps(of_rows), factor));
        max_ = shift.max;
        correction_ = shift.correction;
        _mm512_store_ps(factors, factor);
        _mm512_store_ps(of_rows, shift.shift);
        for (std::size_t row = 0; row < work_.n; ++row) {
            __m512 p[kKeyTiles];
#pragma GCC unroll 4
            for (std::size_t tile = 0; tile < kKeyTiles; ++tile) {
                const __m512 s = _mm512_load_ps(scores_ + kPage * row + 16 * tile);
                p[tile] = exp2(_mm512_fmadd_ps(s, _mm512_set1_ps(factors[row]), _mm512_set1_ps(of_rows[row])));
                p[tile] = _mm512_maskz_mov_ps(in_sight(row, page * kPage + 16 * tile), p[tile]);
            }
            // Four sums, each of every fourth key.
            __m128 sum = _mm_setzero_ps();
#pragma GCC unroll 4
            for (std::size_t tile = 0; tile < kKeyTiles; ++tile) {
                sum = _mm_add_ps(sum, _mm512_castps512_ps128(p[tile]));
                sum = _mm_add_ps(sum, _mm512_extractf32x4_ps(p[tile], 1));
                sum = _mm_add_ps(sum, _mm512_extractf32x4_ps(p[tile], 2));
                sum = _mm_add_ps(sum, _mm512_extractf32x4_ps(p[tile], 3));
            }
            const __m128 pairs = _mm_add_ps(sum, _mm_movehdup_ps(sum));
            of_rows[row] = _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs)));
            Byte* at = weights_ + 2 * kPage * row;
            _mm512_store_si512(at, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(p[1], p[0])));
            _mm512_store_si512(at + 64, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(p[3], p[2])));
        }
        sum_ = _mm512_fmadd_ps(sum_, correction_, _mm512_load_ps(of_rows));
    }

    // Without the rows' factors.
    template <std::size_t N>
    void score(std::size_t row) const {
        const Byte* q = queries_ + row * plan_.k_steps * 64;
        __m512i sums[N][kKeyTiles] = {};
        for (std::size_t word = 0; word < 16 * plan_.k_steps; ++word)
#pragma GCC unroll 4
            for (std::size_t tile = 0; tile < kKeyTiles; ++tile) {
                const __m512i keys = _mm512_load_si512(keys_ + 64 * (kKeyTiles * word + tile));
#pragma GCC unroll 4
                for (std::size_t i = 0; i < N; ++i)
                    sums[i][tile] = dot(sums[i][tile], keys, splat_word(q + i * plan_.k_steps * 64 + 4 * word));
            }
#pragma GCC unroll 4
        for (std::size_t i = 0; i < N; ++i)
#pragma GCC unroll 4
            for (std::size_t tile = 0; tile < kKeyTiles; ++tile)
                _mm512_store_ps(scores_ + kPage * (row + i) + 16 * tile,
                                _mm512_cvtepi32_ps(sums[i][tile]) * _mm512_load_ps(key_factors_ + 16 * tile));
    }

    template <class Reader>
    void add_values(const Page& v, std::size_t keys, std::size_t pairs) {
        const KeyRows<Reader> rows(v, keys, work_.a.head_dim_v);
        alignas(64) float corrections[16];
        _mm512_store_ps(corrections, correction_);
        for_rows([&](std::size_t row, auto count) {
            for (std::size_t tile = 0; tile < plan_.v_tiles;)
                visit_count(smaller(kTogether, plan_.v_tiles - tile), [&](auto tiles) {
                    add_values<count.value, tiles.value>(rows, pairs, row, tile, corrections + row);
                    tile += tiles.value;
                });
        });
    }
    template <std::size_t N, std::size_t Tiles, class Rows>
    void add_values(const Rows& values, std::size_t pairs, std::size_t row, std::size_t first_tile,
                    const float* corrections) {
        float* out = out_ + row * row_floats() + 16 * first_tile;
        const Byte* weights = weights_ + 2 * kPage * row;
        __m512 sums[N][Tiles];
#pragma GCC unroll 4
        for (std::size_t i = 0; i < N; ++i)
#pragma GCC unroll 4
            for (std::size_t tile = 0; tile < Tiles; ++tile)
                sums[i][tile] = _mm512_load_ps(out + i * row_floats() + 16 * tile) * _mm512_set1_ps(corrections[i]);
        for (std::size_t pair = 0; pair < pairs; ++pair)
#pragma GCC unroll 4
            for (std::size_t tile = 0; tile < Tiles; ++tile) {
                const __m512i two = bf16_pairs(values.value(2 * pair, first_tile + tile),
                                               values.value(2 * pair + 1, first_tile + tile));
#pragma GCC unroll 4
                for (std::size_t i = 0; i < N; ++i)
                    sums[i][tile] = dot(sums[i][tile], splat_word(weights + 2 * kPage * i + 4 * pair), two);
            }
#pragma GCC unroll 4
        for (std::size_t i = 0; i < N; ++i)
#pragma GCC unroll 4
            for (std::size_t tile = 0; tile < Tiles; ++tile)
                _mm512_store_ps(out + i * row_floats() + 16 * tile, sums[i][tile]);
    }

    void write() const {
        const AttentionArgs& a = work_.a;
        const __mmask16 seen = have_seen(sum_);
        alignas(64) float inverses[16];
        _mm512_store_ps(inverses, _mm512_maskz_div_ps(seen, _mm512_set1_ps(1), sum_));
        for (std::size_t i = 0; i < work_.n; ++i) {
            const std::size_t row = work_.first_row + i;
            float* to = a.out + row / a.n_heads * a.out_stride + row % a.n_heads * a.out_head_stride;
            const __mmask16 any = (seen >> i & 1) != 0 ? first(16) : 0;
            for (std::size_t dim = 0; dim < a.head_dim_v; dim += 16)
                _mm512_mask_storeu_ps(to + dim, first(smaller(16, a.head_dim_v - dim)),
                                      _mm512_maskz_mul_ps(any, _mm512_load_ps(out_ + i * row_floats() + dim),
                                                          _mm512_set1_ps(inverses[i])));
        }
    }

    const Work& work_;
    const Plan& plan_;
    Byte* const keys_;
    float* const key_factors_;
    float* const scores_;
    Byte* const weights_;
    Byte* const queries_;
    float* const query_factors_;
    float* const out_;
    __m512 max_, sum_, correction_;  // of rows, as State has them; the last one of a page
};

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
