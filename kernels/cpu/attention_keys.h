// The scores of a step of decode: queries of up to kHeadsAtOnce heads with the keys of a tile. Included by
// attention_decode.h, once per instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

class SpanKeys {
public:
    static constexpr std::size_t kStrides = 4;  // of scratch, for each head: as many times padded(head_dim)
    static std::size_t padded(std::size_t dims) { return (dims + 31) / 32 * 32; }

    // `scores` [head][key of the block] is what is made; `products`: as much, for what lies between.
    SpanKeys(Pages pages, bool exact, float* scratch, float* scores, float* products)
        : pages_(pages),
          runs_(span_kernels(pages.view)),
          open_(kernels_for<FloatRuns<F16Element>>()),
          units_(exact ? nullptr : unit_kernels(pages.view, pages.head_dim)),
          stride_(padded(pages.head_dim)),
          q_(scratch),
          q_runs_(q_ + kHeadsAtOnce * stride_),
          q_scaled_(q_runs_ + kHeadsAtOnce * stride_),
          q_split_(reinterpret_cast<std::uint8_t*>(q_scaled_ + kHeadsAtOnce * stride_)),
          scores_(scores),
          products_(products) {}

    [[nodiscard]] bool in_integers() const { return units_ != nullptr; }

    // q: [n_heads][head_dim]. `fetches`: these heads are the first that read the keys.
    void take(const float* q, std::size_t q_head_stride, std::size_t n_heads, bool fetches) {
        n_ = n_heads;
        pages_.fetches = fetches;
        for (std::size_t h = 0; h < n_; ++h) {
            float* own = q_ + h * stride_;
            std::memcpy(own, q + h * q_head_stride, pages_.head_dim * sizeof *own);
            for (std::size_t d = pages_.head_dim; d < stride_; ++d) own[d] = 0;
            order(own, q_runs_ + h * stride_);
        }
        if (!pages_.has_codes() || pages_.view.group == 0) return;
        for (std::size_t g = 0; g < pages_.groups(); ++g) {
            if (units_) split_queries(q_runs_, g * pages_.view.group, pages_.view.group, g, q_splits_);
            for (std::size_t h = 0; h < n_ && pages_.view.zero_offset != 0; ++h) {
                F32x16 total = zero();
                for (std::size_t d = 0; d < pages_.view.group; d += 16)
                    total = total + load(q_ + h * stride_ + g * pages_.view.group + d);
                q_sums_[h][g] = sum(total);
            }
        }
    }

    // The rest of what is fetched for the tile a block further.
    HETERO_INLINE void fetch_ahead(const KeyTile& tile) const {
        if (units_) fetch(part_of(pages_.bytes_of(tile.page + kBlockTiles), 2, 3));
    }
    // A page of the block that is read first: there is none before it that would have fetched it.
    HETERO_INLINE void fetch_first(std::size_t page) const {
        if (units_) fetch(pages_.bytes_of(page));
    }

    void score(const KeyTile& tile) {
        const KvView& k = pages_.view;
        float* scores = scores_ + tile.i * kTileKeys;
        KeyTile closed = tile;  // keys from its end on are open
        if (k.open != nullptr && tile.page * kTileKeys + tile.end > k.open_begin) {
            const std::size_t from = tile.page * kTileKeys + tile.begin;
            closed.end = k.open_begin > from ? k.open_begin - tile.page * kTileKeys : tile.begin;
            const std::size_t first = tile.page * kTileKeys + closed.end - k.open_begin, bytes = 2 * pages_.head_dim;
            const TileRows open{reinterpret_cast<const std::uint8_t*>(k.open) + first * bytes, bytes, nullptr};
            open_.dot[n_ - 1](open, tile.end - closed.end, q_, stride_, 0, pages_.head_dim, scores + closed.end);
        }
        if (closed.end == tile.begin) return;
        if (!pages_.has_codes()) {
            runs_.dot[n_ - 1](pages_.rows(tile), closed.end - tile.begin, q_, stride_, 0, pages_.head_dim,
                              scores + tile.begin);
        } else if (k.group != 0 && units_) {
            score_units(closed);
        } else if (k.group != 0) {
            pages_.fetch_next_scales(tile);
            for (std::size_t g = 0; g < pages_.groups(); ++g) score_group(closed, g);
        } else {
            for (KeyTile part = closed; part.begin < closed.end; part.begin = part.end) {
                const std::size_t block = part.begin / k.group_tokens;
                part.end = smaller(closed.end, (block + 1) * k.group_tokens);
                score_block(part, block);
            }
        }
    }

private:
    // What is fetched while a tile is scored: most of the keys a block further.
    [[nodiscard]] ByteRange ahead(const KeyTile& tile) const {
        const ByteRange keys = pages_.bytes_of(tile.page + kBlockTiles);
        return {keys.begin, part_of(keys, 1, 3).end};
    }

    // Queries in the order of the keys' runs.
    HETERO_INLINE void order(const float* from, float* to) const {
        for (std::size_t d = 0; d < stride_; d += 32) {
            F32x16 first = load(from + d), second = load(from + d + 16);
            if (runs_.paired) load_pairs(from + d, first, second);
            store(to + d, first);
            store(to + d + 16, second);
        }
    }

    // Dims that share a scale in each token: scores += dot * scale + zero * sum of q.
    void score_group(const KeyTile& tile, std::size_t g) {
        const KvView& k = pages_.view;
        TileRows keys = pages_.rows(tile);
        if (g != 0) keys.next = nullptr;
        runs_.dot[n_ - 1](keys, tile.end - tile.begin, q_runs_, stride_, g * k.group, (g + 1) * k.group,
                          products_ + tile.begin);
        const std::uint16_t* scale = pages_.scales(tile.page) + g * kTileKeys;
        const std::uint16_t* low = k.zero_offset == 0 ? nullptr : pages_.zeros(tile.page) + g * kTileKeys;
        for (std::size_t h = 0; h < n_; ++h)
            for (std::size_t i = tile.begin / 16 * 16; i < tile.end; i += 16) {
                float* score = scores_ + h * kBlockKeys + tile.i * kTileKeys + i;
                F32x16 value = load(products_ + h * kBlockKeys + i) * (load_f16(scale + i) * splat(runs_.factor));
                if (low) value = fma(load_f16(low + i), splat(q_sums_[h][g]), value);
                // The lanes of open keys have their scores already.
                const std::size_t from = i < tile.begin ? tile.begin - i : 0, to = smaller(16, tile.end - i);
                store(score, where_between(from, to, g == 0 ? value : load(score) + value, load(score)));
            }
    }

    // Of all heads, the dims [first, first + dims). Totals are what is to be taken off the dots of raised codes.
    void split_queries(const float* q, std::size_t first, std::size_t dims, std::size_t g,
                       Split (*splits)[kMostGroups]) {
        visit_heads(n_, [&](auto heads) {
            constexpr std::size_t kHeads = decltype(heads)::value;
            Split made[kHeads];
            split(q + first, stride_, dims, q_split_ + 2 * first, 2 * stride_, raised_by(pages_.view.codes) != 0, made);
            for (std::size_t h = 0; h < kHeads; ++h)
                splits[h][g] = {made[h].factor, raised_by(pages_.view.codes) * made[h].total};
        });
    }

    // The same of all groups, in integers.
    void score_units(const KeyTile& tile) {
        const KvView& k = pages_.view;
        const float nothing[kHeadsAtOnce] = {};
        units_->score[n_ - 1]({.rows = pages_.rows_of(tile.page),
                               .row_bytes = row_bytes(k),
                               .begin = tile.begin,
                               .end = tile.end,
                               .groups = pages_.groups(),
                               .units = k.group / units_->dims,
                               .scales = pages_.scales(tile.page),
                               .zeros = k.zero_offset == 0 ? nullptr : pages_.zeros(tile.page),
                               .q = q_split_,
                               .q_bytes = 2 * stride_,
                               .splits = q_splits_,
                               .q_sums = q_sums_,
                               .added = nothing,
                               .scores = scores_ + tile.i * kTileKeys,
                               .ahead = ahead(tile)});
    }

    // Tokens that share a scale for each dim: the scales go to the query.
    void score_block(const KeyTile& tile, std::size_t block) {
        const KvView& k = pages_.view;
        const std::uint16_t* scale = pages_.scales(tile.page) + block * pages_.head_dim;
        const std::uint16_t* low = k.zero_offset == 0 ? nullptr : pages_.zeros(tile.page) + block * pages_.head_dim;
        F32x16 totals[kHeadsAtOnce] = {};
        for (std::size_t d = 0; d < pages_.head_dim; d += 32) {
            const bool both = d + 16 < pages_.head_dim;
            F32x16 scales[2] = {load_f16(scale + d), both ? load_f16(scale + d + 16) : zero()};
            if (runs_.paired) {
                store(products_, scales[0]);
                store(products_ + 16, scales[1]);
                load_pairs(products_, scales[0], scales[1]);
            }
            for (std::size_t h = 0; h < n_; ++h) {
                const std::size_t at = h * stride_ + d;
                store(q_scaled_ + at, load(q_runs_ + at) * scales[0]);
                store(q_scaled_ + at + 16, load(q_runs_ + at + 16) * scales[1]);
                if (!low) continue;
                totals[h] = fma(load(q_ + at), load_f16(low + d), totals[h]);
                if (both) totals[h] = fma(load(q_ + at + 16), load_f16(low + d + 16), totals[h]);
            }
        }
        float added[kHeadsAtOnce] = {};
        for (std::size_t h = 0; low && h < n_; ++h) added[h] = sum(totals[h]);
        if (units_) return score_block_units(tile, block, added);
        float* scores = scores_ + tile.i * kTileKeys;
        runs_.dot[n_ - 1](pages_.rows(tile), tile.end - tile.begin, q_scaled_, stride_, 0, pages_.head_dim,
                          scores + tile.begin);
        if (!low) return;
        for (std::size_t h = 0; h < n_; ++h)
            for (std::size_t i = tile.begin / 16 * 16; i < tile.end; i += 16) {
                float* score = scores + h * kBlockKeys + i;
                const std::size_t from = i < tile.begin ? tile.begin - i : 0, to = smaller(16, tile.end - i);
                store(score, where_between(from, to, load(score) + splat(added[h]), load(score)));
            }
    }

    void score_block_units(const KeyTile& tile, std::size_t block, const float* added) {
        Split scaled[kHeadsAtOnce][kMostGroups];
        split_queries(q_scaled_, 0, pages_.head_dim, 0, scaled);
        units_->score[n_ - 1]({.rows = pages_.rows_of(tile.page),
                               .row_bytes = row_bytes(pages_.view),
                               .begin = tile.begin,
                               .end = tile.end,
                               .groups = 1,
                               .units = pages_.head_dim / units_->dims,
                               .scales = nullptr,
                               .zeros = nullptr,
                               .q = q_split_,
                               .q_bytes = 2 * stride_,
                               .splits = scaled,
                               .q_sums = nullptr,
                               .added = added,
                               .scores = scores_ + tile.i * kTileKeys,
                               .ahead = part_of(ahead(tile), block, kTileKeys / pages_.view.group_tokens)});
    }

    Pages pages_;
    const SpanKernels &runs_, &open_;
    const UnitKernels* units_;  // null: in f32
    std::size_t n_ = 0, stride_;
    float *q_, *q_runs_,
        *q_scaled_;              // [head][dim]: as given, in the order of runs, times the scales of a group of keys
    std::uint8_t* q_split_;      // [head], of q_runs_ or q_scaled_
    float *scores_, *products_;  // [head][key of the block]
    float q_sums_[kHeadsAtOnce][kMostGroups];
    Split q_splits_[kHeadsAtOnce][kMostGroups];
};

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
