// The sums of a step of decode: values of a block of tiles, weighed for up to kHeadsAtOnce heads. Included by
// attention_decode.h, once per instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

class SpanValues {
public:
    static constexpr std::size_t kWeightFloats = kMostGroups * kBlockKeys / 2;  // of a head

    // Scratch: kWeightFloats and padded(head_dim) floats for each head. weights: [head][key of the block].
    SpanValues(Pages pages, bool exact, float* scratch, const float* weights)
        : pages_(pages),
          runs_(span_kernels(pages.view)),
          units_(exact ? nullptr : unit_kernels(pages.view, pages.head_dim)),
          stride_(SpanKeys::padded(pages.head_dim)),
          acc_(scratch),
          scaled_(acc_ + kHeadsAtOnce * stride_),
          weights_(weights) {}

    [[nodiscard]] bool in_integers() const { return units_ != nullptr; }

    void take(std::size_t n_heads, bool fetches) {
        n_ = n_heads;
        pages_.fetches = fetches;
        for (std::size_t h = 0; h < n_; ++h) {
            for (std::size_t d = 0; d < stride_; d += 16) store(acc_ + h * stride_ + d, zero());
            for (F32x16& of_group : zeros_[h]) of_group = zero();
        }
    }

    // As SpanKeys::fetch_first().
    HETERO_INLINE void fetch_first(std::size_t page) const {
        if (units_) fetch(pages_.bytes_of(page));
    }

    // n tiles of a block. correction [head]: what the sums so far must be multiplied by; 1 afterwards.
    void add(const KeyTile* tiles, std::size_t n, F32x16* correction) {
        for (std::size_t h = 0; h < n_ && pages_.has_codes() && pages_.view.zero_offset != 0; ++h)
            for (std::size_t g = 0; g < pages_.groups(); ++g) zeros_[h][g] = zeros_[h][g] * correction[h];
        if (units_) return add_codes(tiles, n, correction);
        for (std::size_t i = 0; i < n; ++i) {
            add_floats(tiles[i], correction);
            for (std::size_t h = 0; h < n_; ++h) correction[h] = splat(1.0F);
        }
    }

    // out [head_dim]: the sum of weight * value of a head.
    void store_sums(std::size_t h, float* out) const {
        const float* acc = acc_ + h * stride_;
        if (!pages_.has_codes()) {
            std::memcpy(out, acc, pages_.head_dim * sizeof *acc);
            return;
        }
        for (std::size_t g = 0; g < pages_.groups(); ++g) {
            const F32x16 low = splat(pages_.view.zero_offset != 0 ? sum(zeros_[h][g]) : 0.0F);
            for (std::size_t d = g * pages_.view.group; d < (g + 1) * pages_.view.group; d += runs_.paired ? 32 : 16) {
                if (runs_.paired)
                    store_pairs(out + d, load(acc + d) + low, load(acc + d + 16) + low);
                else
                    store(out + d, load(acc + d) + low);
            }
        }
    }

private:
    void add_floats(const KeyTile& tile, const F32x16* correction) {
        const KvView& v = pages_.view;
        const TileRows values = pages_.rows(tile);
        const float* weights = weights_ + tile.i * kTileKeys + tile.begin;
        const std::size_t n_keys = tile.end - tile.begin;
        if (!pages_.has_codes()) {
            runs_.add[n_ - 1](values, n_keys, weights, kBlockKeys, correction, acc_, stride_, 0, pages_.head_dim);
            return;
        }
        pages_.fetch_next_scales(tile);
        const std::size_t groups = pages_.groups();
        for (std::size_t g = 0; g < groups; ++g) scale_weights(g, tile);
        for (std::size_t g = 0; g < groups; ++g) {
            const TileRows part{values.data, values.row_bytes, g == 0 ? values.next : nullptr};
            runs_.add[n_ - 1](part, n_keys, scaled_ + g * kTileKeys + tile.begin, kWeightFloats, correction, acc_,
                              stride_, g * v.group, (g + 1) * v.group);
        }
    }

    void add_codes(const KeyTile* tiles, std::size_t n, const F32x16* correction) {
        const std::size_t groups = pages_.groups();
        ValueTile values[kBlockTiles];
        for (std::size_t i = 0; i < n; ++i) {
            const KeyTile& tile = tiles[i];
            values[i].rows = pages_.rows_of(tile.page);
            values[i].first_run = tile.begin / 16;
            values[i].end_run = (tile.end + 15) / 16;
            const ByteRange ahead = pages_.bytes_of(tile.page + kBlockTiles);
            fetch(part_of(ahead, 0, 3));
            values[i].ahead = {part_of(ahead, 1, 3).begin, ahead.end};
            for (std::size_t g = 0; g < groups; ++g)
                visit_heads(n_, [&](auto heads) {
                    constexpr int kHeads = decltype(heads)::value;
                    if (tile.begin == 0 && tile.end == kTileKeys)
                        split_weights<kHeads, true>(g, tile, values[i].weights[g]);
                    else
                        split_weights<kHeads, false>(g, tile, values[i].weights[g]);
                });
        }
        units_->add[n_ - 1]({.tiles = values,
                             .n_tiles = n,
                             .row_bytes = row_bytes(pages_.view),
                             .groups = groups,
                             .units = pages_.view.group / units_->dims,
                             .correction = correction,
                             .acc = acc_,
                             .acc_stride = stride_});
    }

    // Of N heads, step by step for all of them. Whole: all keys of the tile.
    template <int N, bool Whole>
    void split_weights(std::size_t g, const KeyTile& tile, SplitWeights* out) {
        constexpr std::size_t kRuns = kTileKeys / 16;
        F32x16 weights[N][kRuns] = {}, top[N];
#pragma GCC unroll 4
        for (F32x16& of_head : top) of_head = zero();
        for_runs<Whole>(
            g, tile, [&](std::size_t run, auto inside, F32x16 scale, F32x16 low) __attribute__((always_inline)) {
#pragma GCC unroll 4
                for (std::size_t h = 0; h < N; ++h) {
                    const F32x16 weight = load(weights_ + h * kBlockKeys + tile.i * kTileKeys + 16 * run);
                    weights[h][run] = inside(weight * scale);
                    top[h] = max(weights[h][run], top[h]);
                    if (pages_.view.zero_offset != 0) zeros_[h][g] = zeros_[h][g] + inside(weight * low);
                }
            });
        float largest[N];
#pragma GCC unroll 4
        for (std::size_t h = 0; h < N; ++h) largest[h] = max_lane(top[h]);
#pragma GCC unroll 4
        for (std::size_t h = 0; h < N; ++h) {
            const F32x16 inverse = splat(split_inverse(largest[h]));
            auto* numbers = reinterpret_cast<std::uint8_t*>(scaled_ + h * kWeightFloats) +
                            2 * (g * kBlockKeys + tile.i * kTileKeys);
            I32x16 rounded[kRuns];
#pragma GCC unroll 4
            for (std::size_t run = 0; run < kRuns; ++run) rounded[run] = round_to_int(weights[h][run] * inverse);
            store_splits(numbers, rounded);
            out[h] = {numbers, split_factor(largest[h]), 0};
            if (raised_by(pages_.view.codes) == 0) continue;
            // Exact; beyond an int where a weight is NaN, as is the sum of the weights then.
            const F32x16 total = to_float((rounded[0] + rounded[1]) + (rounded[2] + rounded[3]));
            const float raised = static_cast<float>(raised_by(pages_.view.codes)) * sum(total);
            if (raised >= 0 && raised < 0x1p31F) out[h].raised = static_cast<int>(raised);
        }
    }

    void scale_weights(std::size_t g, const KeyTile& tile) {
        for_runs<false>(
            g, tile, [&](std::size_t run, auto inside, F32x16 scale, F32x16 low) __attribute__((always_inline)) {
                for (std::size_t h = 0; h < n_; ++h) {
                    const F32x16 weight = load(weights_ + h * kBlockKeys + tile.i * kTileKeys + 16 * run);
                    store(scaled_ + h * kWeightFloats + g * kTileKeys + 16 * run,
                          inside(weight * (scale * splat(runs_.factor))));
                    if (pages_.view.zero_offset != 0) zeros_[h][g] = zeros_[h][g] + inside(weight * low);
                }
            });
    }

    // visit(run, inside, scales, zeros) for each 16 keys; inside(x): 0 for those that are not in sight.
    template <bool Whole, class Visit>
    HETERO_INLINE void for_runs(std::size_t g, const KeyTile& tile, Visit visit) {
        const KvView& v = pages_.view;
        const std::uint16_t* scale = pages_.scales(tile.page) + g * kTileKeys;
        const std::uint16_t* low = v.zero_offset == 0 ? nullptr : pages_.zeros(tile.page) + g * kTileKeys;
#pragma GCC unroll 4
        for (std::size_t run = 0; run < kTileKeys / 16; ++run) {
            const std::size_t i = 16 * run;
            if (!Whole && (i + 16 <= tile.begin || i >= tile.end)) continue;
            const std::size_t from = i < tile.begin ? tile.begin - i : 0, to = smaller(16, tile.end - i);
            const auto inside = [&](F32x16 x) __attribute__((always_inline)) {
                return Whole ? x : where_between(from, to, x, zero());
            };
            visit(run, inside, load_f16(scale + i), low ? load_f16(low + i) : zero());
        }
    }

    Pages pages_;
    const SpanKernels& runs_;
    const UnitKernels* units_;  // null: in f32
    std::size_t n_ = 0, stride_;
    float* acc_;     // [head][dim], in the order of runs
    float* scaled_;  // [head][group]: weights times scales, [key of the tile], or split, [key of the block]
    const float* weights_;
    F32x16 zeros_[kHeadsAtOnce][kMostGroups];  // by key mod 16: the sum of weight * zero
};

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
