// Attention of a chunk of queries with AMX in bf16. See row_attention.h.
//
// Q and K are sums of two bf16 (f16 is exactly that), the product of the two small parts being left out; weights and V
// are one.
#define HETERO_ISA amx
#include "kernels/cpu/vec_avx512.h"
//
#include "kernels/cpu/math.h"
//
#include "kernels/cpu/bf16.h"
//
#include "kernels/cpu/row_attention.h"
#include "kernels/cpu/tile_config.h"

namespace hetero::kernels::amx {
namespace {

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
        const Byte* keys = k_ + step_ * kTile + (part_ == 1 ? plan_.k_rest : 0);
        const std::size_t next = plan_.k_steps * kTile;
        if (part_ != 1) _tile_loadd(4, q_ + step_ * kTile + (part_ == 2 ? plan_.q_rest : 0), 64);
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

class TileProducts {
public:
    static constexpr std::size_t kFewRows = 0;

    template <class Reader>
    static void load_keys(const Page& k, std::size_t keys, std::size_t dims, const Plan& plan, Byte* scratch) {
        const KeyRows<Reader> rows(k, keys, dims);
        for (std::size_t step = 0; step < plan.k_steps; ++step)
            for (std::size_t key = 0; key < kPage; ++key) {
                Byte* to = scratch + (key / 16 * plan.k_steps + step) * kTile + key % 16 * 64;
                const Split parts = split(rows.value(key, 2 * step), rows.value(key, 2 * step + 1));
                _mm512_store_si512(to, parts.high);
                _mm512_store_si512(to + plan.k_rest, parts.low);
            }
    }

    static void load_queries(const AttentionArgs& a, std::size_t first_row, std::size_t n, const Plan& plan,
                             Byte* tile) {
        for (std::size_t step = 0; step < plan.k_steps; ++step) {
            __m512i high[16], low[16];
            for (std::size_t i = 0; i < 16; ++i) {
                high[i] = low[i] = _mm512_setzero_si512();
                if (i >= n) continue;
                const std::size_t row = first_row + i;
                const float* q = a.q + row / a.n_heads * a.q_stride + row % a.n_heads * a.q_head_stride;
                using Floats = Reader<DType::f32, false>;
                const Split parts = split(Floats::load_16(q, 32 * step, a.head_dim_k),
                                          Floats::load_16(q, 32 * step + 16, a.head_dim_k));
                high[i] = parts.high;
                low[i] = parts.low;
            }
            transpose(high);
            transpose(low);
            for (std::size_t i = 0; i < 16; ++i) {
                _mm512_store_si512(tile + step * kTile + 64 * i, high[i]);
                _mm512_store_si512(tile + plan.q_rest + step * kTile + 64 * i, low[i]);
            }
        }
    }

    // While a tile's weights are computed, the values of the one before are added, and the next one's scores are under
    // way.
    static void attend_page(const Work& work, std::size_t page, std::size_t first_tile, std::size_t last_tile) {
        const auto& [a, plan, first_row, n, scratch] = work;
        const auto scores_of = [&](std::size_t tile) {
            return work.scratch + work.plan.scores + tile % 2 * kKeyTiles * kTile;
        };
        const auto weights_of = [&](std::size_t tile) {
            return work.scratch + work.plan.weights + tile % 2 * 2 * kTile;
        };
        const float factor = a.softcap > 0 ? kLog2E : a.scale * kLog2E;
        Products products(plan, scratch, !is_float(a.k) || a.k.dtype != DType::bf16);
        const auto finish = [&]() __attribute__((always_inline)) {
            products.begin(1);
            products.finish();
        };
        if (first_tile < last_tile) products.add_scores(work.tile_at(first_tile), scores_of(first_tile));
        finish();
        for (std::size_t tile = first_tile; tile < last_tile; ++tile) {
            if (tile + 1 < last_tile) products.add_scores(work.tile_at(tile + 1), scores_of(tile + 1));
            State& state = work.state_of(tile);
            auto* scores = reinterpret_cast<float*>(scores_of(tile));
            Byte* weights = weights_of(tile);
            if (a.softcap > 0) cap_scores(scores, kPage * kRows, _mm512_set1_ps(a.scale), a.softcap);
            const __m512 factors = _mm512_set1_ps(factor);
            const __m512 correction = work.sees_all(tile, page)
                                          ? weigh_keys<false>(state, page, factors, scores, weights, products)
                                          : weigh_keys<true>(state, page, factors, scores, weights, products);
            Byte* out = work.tile_at(tile) + plan.out;
            if (_mm512_cmp_ps_mask(correction, _mm512_set1_ps(1), _CMP_NEQ_UQ) != 0)
                for (std::size_t i = 0; i < plan.v_tiles * kTile; i += 64) {
                    auto* at = reinterpret_cast<float*>(out + i);
                    _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), correction));
                }
            products.add_values(scratch + plan.v, weights, out);
        }
        finish();
    }

private:
    WholeTiles tiles_;
};

}  // namespace

void prefill_attention(const AttentionArgs& args) { attend<TileProducts>(args); }

}  // namespace hetero::kernels::amx
