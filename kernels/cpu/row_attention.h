// Attention of a chunk of queries, for tiles of 16 rows, a row being a query of one head. Included by the backends that
// multiply in 16 bits, after vec_avx512.h and bf16.h.
//
// Online softmax over pages of 64 keys (Milakov and Gimelshein, https://arxiv.org/abs/1805.02867; Dao et al.,
// https://arxiv.org/abs/2205.14135). Scores are computed transposed, [key][row], so that a lane is a row: maxima and
// sums need no step across lanes, and the weights leave in the order in which the next product wants them. Codes are
// widened to f32 page by page first, once for all rows that are in work.
#pragma once
#include "kernels/api/ops.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/scratch.h"

namespace hetero::kernels::HETERO_ISA {
namespace {

using Byte = std::uint8_t;

constexpr std::size_t kPage = kKvPageTokens, kRows = 16, kTile = 1024;  // bytes of a tile
constexpr std::size_t kKeyTiles = kPage / 16;
static_assert(kPage == 64);

// 16 rows of 16 words.
HETERO_INLINE void transpose(__m512i (&r)[16]) {
    __m512i t[16];
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]), d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c);
        t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d);
        t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // t[4 k + i]: 128-bit lane j holds column 4 j + i of rows 4 k ...
        const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
        const __m512i c = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
        r[i] = _mm512_shuffle_i32x4(a, c, 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

// Reads values of a type. Whole: there are as many as are asked for; else zeros stand for those that are not.
template <DType Type, bool Whole>
struct Reader {
    static constexpr bool kWhole = Whole;

    // 16 values from column `col` of `cols`.
    static HETERO_INLINE __m512 load_16(const void* row, std::size_t col, std::size_t cols) {
        const __mmask16 mask = Whole ? first(16) : first(col < cols ? smaller(16, cols - col) : 0);
        if constexpr (Type == DType::f32) {
            return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(row) + col);
        } else {
            const auto* at = static_cast<const std::uint16_t*>(row) + col;
            const __m256i half =
                Whole ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)) : _mm256_maskz_loadu_epi16(mask, at);
            if constexpr (Type == DType::f16) return _mm512_cvtph_ps(half);
            return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        }
    }
};

template <bool Whole, class Visit>
HETERO_INLINE void visit_type(DType type, Visit visit) {
    if (type == DType::f16) return visit(Reader<DType::f16, Whole>());
    if (type == DType::bf16) return visit(Reader<DType::bf16, Whole>());
    visit(Reader<DType::f32, Whole>());
}

template <class Visit>
HETERO_INLINE void visit_reader(DType type, bool whole, Visit visit) {
    whole ? visit_type<true>(type, visit) : visit_type<false>(type, visit);
}

// Where things lie in the scratch of a thread.
struct Plan {
    std::size_t k_steps, v_tiles;                  // 32 columns of K, 16 of V
    std::size_t k_rest, v, scores, weights, wide;  // bytes; wide: a page of codes as f32
    std::size_t rows, row_bytes;                   // of a row tile: Q, the rest of Q, output, state
    std::size_t q_rest, out, state;                // within a row tile
    std::size_t row_tiles;                         // that fit

    // What K and Q have beside 16 bits, the rest, takes as much again.
    Plan(std::size_t dim_k, std::size_t dim_v, bool coded) : k_steps((dim_k + 31) / 32), v_tiles((dim_v + 15) / 16) {
        k_rest = kKeyTiles * k_steps * kTile;
        v = 2 * k_rest;
        scores = v + 2 * v_tiles * kTile;
        weights = scores + 2 * kKeyTiles * kTile;
        wide = weights + 2 * 2 * kTile;
        rows = wide + (coded ? kPage * sizeof(float) * (dim_k > dim_v ? dim_k : dim_v) : 0);
        q_rest = k_steps * kTile;
        out = 2 * q_rest;
        state = out + v_tiles * kTile;
        row_bytes = state + 4 * 64;
        const std::size_t bytes = kScratchFloats * sizeof(float);
        row_tiles = rows < bytes ? (bytes - rows) / row_bytes : 0;
    }
};

bool is_float(const KvView& view) { return view.codes == KvCodes::floats; }

// A tile of rows in work, beside its Q and its output, [dim][row], not yet divided.
struct State {
    __m512 max, sum;     // of scores in units of a factor of 2
    __m512i begin, end;  // keys in sight
};

struct Page {
    KvView view;
    std::size_t index;
};

// Rows [first_row, first_row + n) of all queries and heads, and where their tiles lie.
struct Work {
    const AttentionArgs& a;
    const Plan& plan;
    std::size_t first_row, n;
    Byte* scratch;

    [[nodiscard]] std::size_t tiles() const { return (n + kRows - 1) / kRows; }
    [[nodiscard]] std::size_t query(std::size_t row) const { return a.first_position + (first_row + row) / a.n_heads; }
    [[nodiscard]] std::size_t begin_of(std::size_t row) const {  // of the keys in sight
        return a.window != 0 && query(row) + 1 > a.window ? query(row) + 1 - a.window : 0;
    }
    [[nodiscard]] std::size_t end_of(std::size_t row) const { return smaller(query(row) + 1, a.kv_tokens); }
    [[nodiscard]] std::size_t last_row(std::size_t tile) const { return smaller(n, (tile + 1) * kRows) - 1; }
    [[nodiscard]] Byte* tile_at(std::size_t tile) const { return scratch + plan.rows + tile * plan.row_bytes; }
    [[nodiscard]] State& state_of(std::size_t tile) const {
        return *reinterpret_cast<State*>(tile_at(tile) + plan.state);
    }
    // Whether every row of the tile sees all of the page.
    [[nodiscard]] bool sees_all(std::size_t tile, std::size_t page) const {
        return end_of(tile * kRows) >= (page + 1) * kPage && begin_of(last_row(tile)) <= page * kPage;
    }

    // visit(page, keys of it) of those that some row sees some of.
    template <class Visit>
    HETERO_INLINE void for_pages(Visit visit) const {
        const std::size_t end = (end_of(n - 1) + kPage - 1) / kPage;
        for (std::size_t page = begin_of(0) / kPage; page < end; ++page)
            visit(page, smaller(kPage, a.kv_tokens - page * kPage));
    }
    // A page, widened to where `wide` points from then on if it is in codes. One at a time.
    [[nodiscard]] Page in_floats(const KvView& view, std::size_t page, std::size_t keys, std::size_t dims,
                                 const std::byte*& wide) const {
        if (is_float(view)) return {view, page};
        Byte* to = scratch + plan.wide;
        avx512::widen_page(view, page, keys, dims, reinterpret_cast<float*>(to));
        wide = reinterpret_cast<const std::byte*>(to);
        return {{DType::f32, &wide, 0, dims}, 0};
    }
};

// Of the first keys of a page, K or V.
template <class Reader>
struct KeyRows {
    const Byte* rows;
    std::size_t row_bytes, keys, dims;

    HETERO_INLINE KeyRows(const Page& page, std::size_t keys_, std::size_t dims_)
        : rows(reinterpret_cast<const Byte*>(page.view.pages[page.index] + page.view.offset)),
          row_bytes(dtype_bytes(page.view.dtype, page.view.token_stride)),
          keys(keys_),
          dims(dims_) {}
    // 16 values; zeros beyond the last key.
    [[nodiscard]] HETERO_INLINE __m512 value(std::size_t key, std::size_t run) const {
        return Reader::kWhole || key < keys ? Reader::load_16(rows + key * row_bytes, 16 * run, dims)
                                            : _mm512_setzero_ps();
    }
};

// ---- V, for all ways to multiply

template <class Reader>
void load_values(const Page& v, std::size_t keys, std::size_t dims, const Plan& plan, Byte* tiles) {
    const KeyRows<Reader> rows(v, keys, dims);
    for (std::size_t half = 0; half < 2; ++half)
        for (std::size_t tile = 0; tile < plan.v_tiles; ++tile) {
            __m512i pairs[16];  // [pair of keys][dim][2]
#pragma GCC unroll 16
            for (std::size_t i = 0; i < 16; ++i)
                pairs[i] = bf16_pairs(rows.value(32 * half + 2 * i, tile), rows.value(32 * half + 2 * i + 1, tile));
            transpose(pairs);
            Byte* to = tiles + (2 * tile + half) * kTile;
#pragma GCC unroll 16
            for (std::size_t i = 0; i < 16; ++i) _mm512_store_si512(to + 64 * i, pairs[i]);
        }
}

// ---- the steps of a tile of rows

// What weights are shifted by where the maximum so far meets that of a page.
struct Shift {
    __m512 max, correction, shift;  // correction: of what was added before
};
HETERO_INLINE Shift shift_to(__m512 before, __m512 page_max) {
    const __m512 lowest = _mm512_set1_ps(-__builtin_inff()), max = _mm512_max_ps(before, page_max);
    const __mmask16 seen = _mm512_cmp_ps_mask(max, lowest, _CMP_GT_OQ);
    const __m512 correction = _mm512_mask_blend_ps(
        _mm512_cmp_ps_mask(max, before, _CMP_EQ_OQ),
        exp2(_mm512_max_ps(_mm512_maskz_sub_ps(seen, before, max), _mm512_set1_ps(-200))), _mm512_set1_ps(1));
    return {max, correction, _mm512_maskz_sub_ps(seen, _mm512_setzero_ps(), max)};
}

// Scores, times a factor of each row, to weights in bf16; what the output so far must be multiplied by. Masked: some
// key is out of some row's sight. `side`: what is done besides, a part at each call of some().
template <bool Masked, class Side>
HETERO_INLINE __m512 weigh_keys(State& state, std::size_t page, __m512 factor, const float* scores, Byte* weights,
                                Side& side) {
    const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
    const auto in_sight = [&](std::size_t key) __attribute__((always_inline)) {
        const __m512i index = _mm512_set1_epi32(static_cast<int>(page * kPage + key));
        return static_cast<__mmask16>(_mm512_cmp_epi32_mask(index, state.begin, _MM_CMPINT_NLT) &
                                      _mm512_cmp_epi32_mask(index, state.end, _MM_CMPINT_LT));
    };
    __m512 top[4] = {lowest, lowest, lowest, lowest};
    for (std::size_t key = 0; key < kPage; key += 4)
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; ++i) {
            const __m512 s = _mm512_load_ps(scores + 16 * (key + i));
            if constexpr (Masked)
                top[i] = _mm512_mask_max_ps(top[i], in_sight(key + i), top[i], s);
            else
                top[i] = _mm512_max_ps(top[i], s);
        }
    const __m512 page_max = _mm512_max_ps(_mm512_max_ps(top[0], top[1]), _mm512_max_ps(top[2], top[3]));
    const auto [max, correction, shift] = shift_to(state.max, _mm512_mul_ps(page_max, factor));
    __m512 sum[4] = {};
    side.begin(kPage / 4);
    for (std::size_t key = 0; key < kPage; key += 4) {
        side.some();
        __m512 p[4];
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; ++i) {
            const __m512 s = _mm512_load_ps(scores + 16 * (key + i));
            p[i] = exp2(_mm512_fmadd_ps(s, factor, shift));
            if constexpr (Masked) p[i] = _mm512_maskz_mov_ps(in_sight(key + i), p[i]);
            sum[i] = _mm512_add_ps(sum[i], p[i]);
        }
        _mm512_store_si512(weights + 32 * key, bf16_pairs(p[0], p[1]));
        _mm512_store_si512(weights + 32 * key + 64, bf16_pairs(p[2], p[3]));
    }
    side.finish();
    state.max = max;
    state.sum = _mm512_fmadd_ps(state.sum, correction,
                                _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
    return correction;
}

HETERO_INLINE void cap_scores(float* scores, std::size_t n, __m512 scale, float cap) {
    for (std::size_t i = 0; i < n; i += 16) {
        const F32x16 s = load(scores + i) * (F32x16{{scale}} / splat(cap));
        store(scores + i, tanh(s) * splat(cap));
    }
}

// Rows that have seen any key.
HETERO_INLINE __mmask16 have_seen(__m512 sum) { return _mm512_cmp_ps_mask(sum, _mm512_setzero_ps(), _CMP_NEQ_UQ); }

void write_output(const AttentionArgs& a, std::size_t first_row, std::size_t n, const Plan& plan, const State& state,
                  const Byte* out) {
    const __mmask16 any = have_seen(state.sum);
    const __m512 inverse = _mm512_maskz_div_ps(any, _mm512_set1_ps(1), state.sum);
    for (std::size_t tile = 0; tile < plan.v_tiles; ++tile) {
        __m512i values[16];
#pragma GCC unroll 16
        for (std::size_t i = 0; i < 16; ++i) {
            const __m512 v = _mm512_load_ps(reinterpret_cast<const float*>(out + tile * kTile + 64 * i));
            values[i] = _mm512_castps_si512(_mm512_maskz_mul_ps(any, v, inverse));
        }
        transpose(values);
        const std::size_t dims = smaller(16, a.head_dim_v - 16 * tile);
        for (std::size_t i = 0; i < n; ++i) {
            const std::size_t row = first_row + i;
            float* to = a.out + row / a.n_heads * a.out_stride + row % a.n_heads * a.out_head_stride + 16 * tile;
            _mm512_mask_storeu_ps(to, first(dims), _mm512_castsi512_ps(values[i]));
        }
    }
}

// A way to multiply: load_queries(a, first_row, n, plan, tile) of 16 rows, load_keys<Reader>(...) of a page, and
// attend_page(work, page, first_tile, last_tile) to the page that was loaded, of the tiles that see some of it. Up to
// kFewRows go by attend_few(work).
template <class Way>
void attend_rows(const Way& way, const Work& work) {
    const auto& [a, plan, first_row, n, scratch] = work;
    const std::size_t tiles = work.tiles();
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        Byte* at = work.tile_at(tile);
        const std::size_t count = smaller(kRows, n - tile * kRows);
        way.load_queries(a, first_row + tile * kRows, count, plan, at);
        for (std::size_t i = 0; i < plan.v_tiles * kTile; i += 64)
            _mm512_store_si512(at + plan.out + i, _mm512_setzero_si512());
        alignas(64) std::int32_t begin[kRows], end[kRows];
        for (std::size_t i = 0; i < kRows; ++i) {  // rows that are not there see what the last one does
            const std::size_t row = tile * kRows + smaller(i, count - 1);
            begin[i] = static_cast<std::int32_t>(work.begin_of(row));
            end[i] = static_cast<std::int32_t>(work.end_of(row));
        }
        work.state_of(tile) = {_mm512_set1_ps(-__builtin_inff()), _mm512_setzero_ps(), _mm512_load_si512(begin),
                               _mm512_load_si512(end)};
    }
    work.for_pages([&](std::size_t page, std::size_t keys) {
        const std::size_t from = page * kPage, to = from + kPage;
        const std::byte* wide = nullptr;
        const Page k = work.in_floats(a.k, page, keys, a.head_dim_k, wide);
        visit_reader(k.view.dtype, keys == kPage && a.head_dim_k % 32 == 0, [&](auto reader) {
            way.template load_keys<decltype(reader)>(k, keys, a.head_dim_k, plan, scratch);
        });
        const Page v = work.in_floats(a.v, page, keys, a.head_dim_v, wide);
        visit_reader(v.view.dtype, keys == kPage && a.head_dim_v % 16 == 0, [&](auto reader) {
            load_values<decltype(reader)>(v, keys, a.head_dim_v, plan, scratch + plan.v);
        });
        // Rows see more the later they come, and lose sight of the first keys: those of tiles [first, last) see some.
        std::size_t first_tile = 0, last_tile = tiles;
        while (first_tile < tiles && work.end_of(work.last_row(first_tile)) <= from) ++first_tile;
        while (last_tile > first_tile && work.begin_of((last_tile - 1) * kRows) >= to) --last_tile;
        way.attend_page(work, page, first_tile, last_tile);
    });
    for (std::size_t tile = 0; tile < tiles; ++tile)
        write_output(a, first_row + tile * kRows, smaller(kRows, n - tile * kRows), plan, work.state_of(tile),
                     work.tile_at(tile) + plan.out);
}

template <class Way>
void attend(const AttentionArgs& a) {
    const bool coded = !is_float(a.k) || !is_float(a.v);
    const Plan plan(a.head_dim_k, a.head_dim_v, coded);
    constexpr std::size_t kMaxKeys = std::size_t{1} << 30;  // places are 32-bit lanes
    const std::size_t n_rows = a.n_queries * a.n_heads;
    const bool fits = plan.row_tiles > 0 && a.kv_tokens < kMaxKeys && a.first_position + a.n_queries < kMaxKeys;
    auto* scratch = fits ? reinterpret_cast<Byte*>(thread_scratch()) : nullptr;
    if (scratch == nullptr || !(a.scale > 0) || !avx512::can_widen(a.k, a.head_dim_k) ||
        !avx512::can_widen(a.v, a.head_dim_v) || a.head_dim_v == 0)
        return avx512::kOps.attention(a);
    const Way way;
    for (std::size_t row = 0; row < n_rows; row += plan.row_tiles * kRows) {
        const Work work{a, plan, row, smaller(plan.row_tiles * kRows, n_rows - row), scratch};
        if constexpr (Way::kFewRows != 0) {
            if (work.n <= Way::kFewRows) {
                Way::attend_few(work);
                continue;
            }
        }
        attend_rows(way, work);
    }
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
