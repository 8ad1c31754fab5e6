// Attention of a chunk of queries with AMX in bf16. See api/tiles.h.
//
// Online softmax over pages of 64 keys (Milakov and Gimelshein, https://arxiv.org/abs/1805.02867; Dao et al.,
// https://arxiv.org/abs/2205.14135), for tiles of 16 rows, a row being a query of one head. Scores are computed
// transposed, [key][row], so that a lane is a row: maxima and sums need no step across lanes, and the weights leave in
// the order in which the next product wants them. Q and K are sums of two bf16 (f16 is exactly that), the product of
// the two small parts being left out; weights and V are one. Codes are widened to f32 page by page first, once for all
// rows that are in work.
#include "kernels/api/tiles.h"
#include "kernels/cpu/backends.h"
#define HETERO_ISA amx
#include "kernels/cpu/vec_avx512.h"
//
#include "kernels/cpu/math.h"
//
#include "kernels/cpu/amx_bf16.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_config.h"

namespace hetero::kernels::amx {
namespace {

using Byte = std::uint8_t;

constexpr std::size_t kPage = kKvPageTokens, kRows = 16, kTile = 1024;  // bytes of a tile
constexpr std::size_t kKeyTiles = kPage / 16;
static_assert(kPage == 64);

// 32 values as bf16, and what that lacks of them.
struct Split {
    __m512i high, low;
};
HETERO_INLINE Split split(__m512 a, __m512 b) {
    const auto high = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
    const __m512i wide_a = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(high)), 16);
    const __m512i wide_b = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(high, 1)), 16);
    return {high, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(_mm512_sub_ps(b, _mm512_castsi512_ps(wide_b)),
                                                                _mm512_sub_ps(a, _mm512_castsi512_ps(wide_a))))};
}

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
    std::size_t k_steps, v_tiles;                 // 32 columns of K, 16 of V
    std::size_t k_low, v, scores, weights, wide;  // bytes; wide: a page of codes as f32
    std::size_t rows, row_bytes;                  // of a row tile: Q, Q's low part, output, state
    std::size_t q_low, out, state;                // within a row tile
    std::size_t row_tiles;                        // that fit

    Plan(std::size_t dim_k, std::size_t dim_v, bool coded) : k_steps((dim_k + 31) / 32), v_tiles((dim_v + 15) / 16) {
        k_low = kKeyTiles * k_steps * kTile;
        v = 2 * k_low;
        scores = v + 2 * v_tiles * kTile;
        weights = scores + 2 * kKeyTiles * kTile;
        wide = weights + 2 * 2 * kTile;
        rows = wide + (coded ? kPage * sizeof(float) * (dim_k > dim_v ? dim_k : dim_v) : 0);
        q_low = k_steps * kTile;
        out = 2 * q_low;
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

// ---- a page of K and V as tiles

struct Page {
    KvView view;
    std::size_t index;
};

template <class Reader>
void load_keys(const KvView& k, std::size_t page, std::size_t keys, std::size_t dims, const Plan& plan, Byte* scratch) {
    const auto* rows = reinterpret_cast<const Byte*>(k.pages[page] + k.offset);
    const std::size_t row_bytes = dtype_bytes(k.dtype, k.token_stride);
    for (std::size_t step = 0; step < plan.k_steps; ++step)
        for (std::size_t key = 0; key < kPage; ++key) {
            Byte* to = scratch + (key / 16 * plan.k_steps + step) * kTile + key % 16 * 64;
            Split parts{_mm512_setzero_si512(), _mm512_setzero_si512()};
            if (Reader::kWhole || key < keys)
                parts = split(Reader::load_16(rows + key * row_bytes, 32 * step, dims),
                              Reader::load_16(rows + key * row_bytes, 32 * step + 16, dims));
            _mm512_store_si512(to, parts.high);
            _mm512_store_si512(to + plan.k_low, parts.low);
        }
}

template <class Reader>
void load_values(const KvView& v, std::size_t page, std::size_t keys, std::size_t dims, const Plan& plan, Byte* tiles) {
    const auto* rows = reinterpret_cast<const Byte*>(v.pages[page] + v.offset);
    const std::size_t row_bytes = dtype_bytes(v.dtype, v.token_stride);
    for (std::size_t half = 0; half < 2; ++half)
        for (std::size_t tile = 0; tile < plan.v_tiles; ++tile) {
            const auto value = [&](std::size_t key) __attribute__((always_inline)) {
                return Reader::kWhole || key < keys ? Reader::load_16(rows + key * row_bytes, 16 * tile, dims)
                                                    : _mm512_setzero_ps();
            };
            __m512i pairs[16];  // [pair of keys][dim][2]
#pragma GCC unroll 16
            for (std::size_t i = 0; i < 16; ++i)
                pairs[i] = bf16_pairs(value(32 * half + 2 * i), value(32 * half + 2 * i + 1));
            transpose(pairs);
            Byte* to = tiles + (2 * tile + half) * kTile;
#pragma GCC unroll 16
            for (std::size_t i = 0; i < 16; ++i) _mm512_store_si512(to + 64 * i, pairs[i]);
        }
}

// ---- the steps of a tile of rows

void load_queries(const AttentionArgs& a, std::size_t first_row, std::size_t n, const Plan& plan, Byte* tile) {
    for (std::size_t step = 0; step < plan.k_steps; ++step) {
        __m512i high[16], low[16];
        for (std::size_t i = 0; i < 16; ++i) {
            high[i] = low[i] = _mm512_setzero_si512();
            if (i >= n) continue;
            const std::size_t row = first_row + i;
            const float* q = a.q + row / a.n_heads * a.q_stride + row % a.n_heads * a.q_head_stride;
            using Floats = Reader<DType::f32, false>;
            const Split parts =
                split(Floats::load_16(q, 32 * step, a.head_dim_k), Floats::load_16(q, 32 * step + 16, a.head_dim_k));
            high[i] = parts.high;
            low[i] = parts.low;
        }
        transpose(high);
        transpose(low);
        for (std::size_t i = 0; i < 16; ++i) {
            _mm512_store_si512(tile + step * kTile + 64 * i, high[i]);
            _mm512_store_si512(tile + plan.q_low + step * kTile + 64 * i, low[i]);
        }
    }
}

// Products that are under way while weights are computed: out [dim][row] += V^T weights of one tile of rows, then the
// scores [key][row] of another one and a page. In groups of about four tile products.
class Products {
public:
    Products(const Plan& plan, const Byte* k, bool k_has_low) : plan_(plan), k_(k), k_has_low_(k_has_low) {}

    void add_values(const Byte* v, const Byte* weights, Byte* out) {
        v_ = v;
        weights_ = weights;
        out_ = out;
        v_tiles_ = plan_.v_tiles;
        groups_ += plan_.v_tiles / 4 * 2 + plan_.v_tiles % 4;
    }
    void add_scores(const Byte* q, Byte* scores) {
        q_ = q;
        scores_ = scores;
        score_groups_ = plan_.k_steps * (k_has_low_ ? 3 : 2);
        groups_ += score_groups_;
        step_ = part_ = 0;
    }

    // Called `times` times between their addition and finish().
    HETERO_INLINE void begin(std::size_t times) {
        times_ = times;
        due_ = 0;
        memory_fence_for_tiles();
    }
    HETERO_INLINE void some() {
        for (due_ += groups_; due_ >= times_ && left(); due_ -= times_) group();
    }
    HETERO_INLINE void finish() {
        while (left()) group();
        groups_ = 0;
        memory_fence_for_tiles();
    }

private:
    [[nodiscard]] HETERO_INLINE bool left() const { return v_tiles_ + score_groups_ > 0; }

    HETERO_INLINE void group() {
        if (v_tiles_ >= 4)
            four_values();
        else if (v_tiles_ > 0)
            one_value();
        else
            score();
    }

    HETERO_INLINE void four_values() {
        if (part_of_four_ == 0) {
            _tile_loadd(6, weights_, 64);
            _tile_loadd(7, weights_ + kTile, 64);
            _tile_loadd(0, out_, 64);
            _tile_loadd(1, out_ + kTile, 64);
            _tile_loadd(2, out_ + 2 * kTile, 64);
            _tile_loadd(3, out_ + 3 * kTile, 64);
            _tile_loadd(4, v_, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, v_ + 2 * kTile, 64);
            _tile_dpbf16ps(1, 5, 6);
            _tile_loadd(4, v_ + 4 * kTile, 64);
            _tile_dpbf16ps(2, 4, 6);
            _tile_loadd(5, v_ + 6 * kTile, 64);
            _tile_dpbf16ps(3, 5, 6);
            part_of_four_ = 1;
            return;
        }
        _tile_loadd(4, v_ + kTile, 64);
        _tile_dpbf16ps(0, 4, 7);
        _tile_loadd(5, v_ + 3 * kTile, 64);
        _tile_dpbf16ps(1, 5, 7);
        _tile_loadd(4, v_ + 5 * kTile, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, v_ + 7 * kTile, 64);
        _tile_dpbf16ps(3, 5, 7);
        _tile_stored(0, out_, 64);
        _tile_stored(1, out_ + kTile, 64);
        _tile_stored(2, out_ + 2 * kTile, 64);
        _tile_stored(3, out_ + 3 * kTile, 64);
        part_of_four_ = 0;
        v_tiles_ -= 4;
        out_ += 4 * kTile;
        v_ += 8 * kTile;
    }
    HETERO_INLINE void one_value() {
        _tile_loadd(6, weights_, 64);
        _tile_loadd(7, weights_ + kTile, 64);
        _tile_loadd(0, out_, 64);
        _tile_loadd(4, v_, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, v_ + kTile, 64);
        _tile_dpbf16ps(0, 5, 7);
        _tile_stored(0, out_, 64);
        --v_tiles_;
        out_ += kTile;
        v_ += 2 * kTile;
    }

    // Of 32 columns: K's high part and Q's, then K's low one, then Q's.
    HETERO_INLINE void score() {
        if (step_ == 0 && part_ == 0) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        }
        const Byte* keys = k_ + step_ * kTile + (part_ == 1 ? plan_.k_low : 0);
        const std::size_t next = plan_.k_steps * kTile;
        if (part_ != 1) _tile_loadd(4, q_ + step_ * kTile + (part_ == 2 ? plan_.q_low : 0), 64);
        _tile_loadd(5, keys, 64);
        _tile_dpbf16ps(0, 5, 4);
        _tile_loadd(6, keys + next, 64);
        _tile_dpbf16ps(1, 6, 4);
        _tile_loadd(5, keys + 2 * next, 64);
        _tile_dpbf16ps(2, 5, 4);
        _tile_loadd(6, keys + 3 * next, 64);
        _tile_dpbf16ps(3, 6, 4);
        part_ = part_ == 0 && !k_has_low_ ? 2 : part_ + 1;
        if (part_ == 3) part_ = 0, ++step_;
        if (--score_groups_ > 0) return;
        _tile_stored(0, scores_, 64);
        _tile_stored(1, scores_ + kTile, 64);
        _tile_stored(2, scores_ + 2 * kTile, 64);
        _tile_stored(3, scores_ + 3 * kTile, 64);
    }

    const Plan& plan_;
    const Byte* k_;
    bool k_has_low_;
    const Byte *v_ = nullptr, *weights_ = nullptr, *q_ = nullptr;
    Byte *out_ = nullptr, *scores_ = nullptr;
    std::size_t v_tiles_ = 0, part_of_four_ = 0;          // values that are left
    std::size_t score_groups_ = 0, step_ = 0, part_ = 0;  // scores that are left
    std::size_t groups_ = 0, times_ = 1, due_ = 0;
};

// Scores to weights in bf16; what the output so far must be multiplied by. Masked: some key is out of some row's sight.
template <bool Masked>
HETERO_INLINE __m512 weigh_keys(State& state, std::size_t page, float factor, const float* scores, Byte* weights,
                                Products& products) {
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
    const __m512 max = _mm512_max_ps(state.max, _mm512_mul_ps(page_max, _mm512_set1_ps(factor)));
    const __mmask16 seen = _mm512_cmp_ps_mask(max, lowest, _CMP_GT_OQ);
    const __m512 correction = _mm512_mask_blend_ps(
        _mm512_cmp_ps_mask(max, state.max, _CMP_EQ_OQ),
        exp2(_mm512_max_ps(_mm512_maskz_sub_ps(seen, state.max, max), _mm512_set1_ps(-200))), _mm512_set1_ps(1));
    const __m512 shift = _mm512_maskz_sub_ps(seen, _mm512_setzero_ps(), max);
    __m512 sum[4] = {};
    products.begin(kPage / 4);
    for (std::size_t key = 0; key < kPage; key += 4) {
        products.some();
        __m512 p[4];
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; ++i) {
            const __m512 s = _mm512_load_ps(scores + 16 * (key + i));
            p[i] = exp2(_mm512_fmadd_ps(s, _mm512_set1_ps(factor), shift));
            if constexpr (Masked) p[i] = _mm512_maskz_mov_ps(in_sight(key + i), p[i]);
            sum[i] = _mm512_add_ps(sum[i], p[i]);
        }
        _mm512_store_si512(weights + 32 * key, bf16_pairs(p[0], p[1]));
        _mm512_store_si512(weights + 32 * key + 64, bf16_pairs(p[2], p[3]));
    }
    products.finish();
    state.max = max;
    state.sum = _mm512_fmadd_ps(state.sum, correction,
                                _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
    return correction;
}

void cap_scores(float* scores, float scale, float cap) {
    for (std::size_t i = 0; i < kPage * kRows; i += 16) {
        const F32x16 s = load(scores + i) * splat(scale / cap);
        store(scores + i, tanh(s) * splat(cap));
    }
}

void write_output(const AttentionArgs& a, std::size_t first_row, std::size_t n, const Plan& plan, const State& state,
                  const Byte* out) {
    const __mmask16 any = _mm512_cmp_ps_mask(state.sum, _mm512_setzero_ps(), _CMP_NEQ_UQ);
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

// Rows [first_row, first_row + n) of all queries and heads.
void attend(const AttentionArgs& a, std::size_t first_row, std::size_t n, const Plan& plan, Byte* scratch) {
    const std::size_t tiles = (n + kRows - 1) / kRows;
    const auto query = [&](std::size_t row) { return a.first_position + (first_row + row) / a.n_heads; };
    const auto begin_of = [&](std::size_t row) {
        return a.window != 0 && query(row) + 1 > a.window ? query(row) + 1 - a.window : 0;
    };
    const auto end_of = [&](std::size_t row) { return smaller(query(row) + 1, a.kv_tokens); };
    const auto tile_at = [&](std::size_t tile) { return scratch + plan.rows + tile * plan.row_bytes; };
    const auto state_of = [&](std::size_t tile) { return reinterpret_cast<State*>(tile_at(tile) + plan.state); };
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        Byte* at = tile_at(tile);
        const std::size_t count = smaller(kRows, n - tile * kRows);
        load_queries(a, first_row + tile * kRows, count, plan, at);
        for (std::size_t i = 0; i < plan.v_tiles * kTile; i += 64)
            _mm512_store_si512(at + plan.out + i, _mm512_setzero_si512());
        alignas(64) std::int32_t begin[kRows], end[kRows];
        for (std::size_t i = 0; i < kRows; ++i) {  // rows that are not there see what the last one does
            const std::size_t row = tile * kRows + smaller(i, count - 1);
            begin[i] = static_cast<std::int32_t>(begin_of(row));
            end[i] = static_cast<std::int32_t>(end_of(row));
        }
        *state_of(tile) = {_mm512_set1_ps(-__builtin_inff()), _mm512_setzero_ps(), _mm512_load_si512(begin),
                           _mm512_load_si512(end)};
    }
    const bool k_has_low = !is_float(a.k) || a.k.dtype != DType::bf16;
    const auto* const wide = reinterpret_cast<const std::byte*>(scratch + plan.wide);
    const float factor = a.softcap > 0 ? kLog2E : a.scale * kLog2E;
    const std::size_t end_page = (end_of(n - 1) + kPage - 1) / kPage;
    for (std::size_t page = begin_of(0) / kPage; page < end_page; ++page) {
        const std::size_t from = page * kPage, to = from + kPage, keys = smaller(kPage, a.kv_tokens - from);
        const auto in_floats = [&](const KvView& view, std::size_t dims) {
            if (is_float(view)) return Page{view, page};
            avx512::widen_page(view, page, keys, dims, reinterpret_cast<float*>(scratch + plan.wide));
            return Page{{DType::f32, &wide, 0, dims}, 0};
        };
        const Page k = in_floats(a.k, a.head_dim_k);
        visit_reader(k.view.dtype, keys == kPage && a.head_dim_k % 32 == 0, [&](auto reader) {
            load_keys<decltype(reader)>(k.view, k.index, keys, a.head_dim_k, plan, scratch);
        });
        const Page v = in_floats(a.v, a.head_dim_v);
        visit_reader(v.view.dtype, keys == kPage && a.head_dim_v % 16 == 0, [&](auto reader) {
            load_values<decltype(reader)>(v.view, v.index, keys, a.head_dim_v, plan, scratch + plan.v);
        });
        // Rows see more the later they come, and lose sight of the first keys: those of tiles [first, last) see some.
        std::size_t first_tile = 0, last_tile = tiles;
        const auto last_row = [&](std::size_t tile) { return smaller(n, (tile + 1) * kRows) - 1; };
        while (first_tile < tiles && end_of(last_row(first_tile)) <= from) ++first_tile;
        while (last_tile > first_tile && begin_of((last_tile - 1) * kRows) >= to) --last_tile;
        // While a tile's weights are computed, the values of the one before are added, and the next one's scores are
        // under way.
        const auto scores_of = [&](std::size_t tile) { return scratch + plan.scores + tile % 2 * kKeyTiles * kTile; };
        const auto weights_of = [&](std::size_t tile) { return scratch + plan.weights + tile % 2 * 2 * kTile; };
        Products products(plan, scratch, k_has_low);
        const auto finish = [&]() __attribute__((always_inline)) {
            products.begin(1);
            products.finish();
        };
        if (first_tile < last_tile) products.add_scores(tile_at(first_tile), scores_of(first_tile));
        finish();
        for (std::size_t tile = first_tile; tile < last_tile; ++tile) {
            if (tile + 1 < last_tile) products.add_scores(tile_at(tile + 1), scores_of(tile + 1));
            State& state = *state_of(tile);
            auto* scores = reinterpret_cast<float*>(scores_of(tile));
            Byte* weights = weights_of(tile);
            if (a.softcap > 0) cap_scores(scores, a.scale, a.softcap);
            const bool whole = end_of(tile * kRows) >= to && begin_of(last_row(tile)) <= from;
            const __m512 correction = whole ? weigh_keys<false>(state, page, factor, scores, weights, products)
                                            : weigh_keys<true>(state, page, factor, scores, weights, products);
            Byte* out = tile_at(tile) + plan.out;
            if (_mm512_cmp_ps_mask(correction, _mm512_set1_ps(1), _CMP_NEQ_UQ) != 0)
                for (std::size_t i = 0; i < plan.v_tiles * kTile; i += 64) {
                    auto* at = reinterpret_cast<float*>(out + i);
                    _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), correction));
                }
            products.add_values(scratch + plan.v, weights, out);
        }
        finish();
    }
    for (std::size_t tile = 0; tile < tiles; ++tile)
        write_output(a, first_row + tile * kRows, smaller(kRows, n - tile * kRows), plan, *state_of(tile),
                     tile_at(tile) + plan.out);
}

}  // namespace

void tile_attention(const AttentionArgs& a) {
    const bool coded = !is_float(a.k) || !is_float(a.v);
    const Plan plan(a.head_dim_k, a.head_dim_v, coded);
    constexpr std::size_t kMaxKeys = std::size_t{1} << 30;  // places are 32-bit lanes
    const std::size_t n_rows = a.n_queries * a.n_heads;
    const bool fits = plan.row_tiles > 0 && a.kv_tokens < kMaxKeys && a.first_position + a.n_queries < kMaxKeys;
    auto* scratch = fits ? reinterpret_cast<Byte*>(thread_scratch()) : nullptr;
    if (scratch == nullptr || !(a.scale > 0) || !avx512::can_widen(a.k, a.head_dim_k) ||
        !avx512::can_widen(a.v, a.head_dim_v) || a.head_dim_v == 0)
        return avx512::kOps.attention(a);
    const WholeTiles tiles;
    for (std::size_t row = 0; row < n_rows; row += plan.row_tiles * kRows)
        attend(a, row, smaller(plan.row_tiles * kRows, n_rows - row), plan, scratch);
}

}  // namespace hetero::kernels::amx
