// Attention of one query over a span of keys, for the heads that share K and V: a step of decode. K and V are read
// once, in the type they are kept in; codes are not multiplied by their scales one by one, scores and weights are.
// Spans give (max, sum, acc), as in Flash-Decoding (https://arxiv.org/abs/2311.01282), and are merged in order.
// Included once per instruction set, after attention.h.
#pragma once
#include "kernels/cpu/attention_runs.h"
//
#include "kernels/cpu/attention_codes.h"

namespace hetero::kernels::HETERO_ISA {
namespace {

HETERO_INLINE std::size_t row_bytes(const KvView& view) {
    if (view.codes == KvCodes::floats) return view.token_stride * (view.dtype == DType::f32 ? 4 : 2);
    return is_paired(view.codes) ? view.token_stride / 2 : view.token_stride;
}

// Runs are whole within groups, and tokens of a group within a tile.
bool has_kernels(const KvView& view, std::size_t head_dim) {
    if (view.codes == KvCodes::floats) return true;
    const std::size_t unit = is_paired(view.codes) ? 32 : 16;
    if (head_dim % unit != 0) return false;
    if (view.group == 0) return kTileKeys % view.group_tokens == 0;
    return view.group % unit == 0 && head_dim % view.group == 0 && head_dim / view.group <= kMostGroups;
}

// Up to kHeadsAtOnce heads on their way through a span.
class SpanHeads {
public:
    static std::size_t padded(std::size_t dims) { return (dims + 31) / 32 * 32; }
    static std::size_t scratch_floats(const AttentionArgs& a) {  // at most; the same on every instruction set
        return 4 * (4 * padded(a.head_dim_k) + padded(a.head_dim_v) + (2 + kMostGroups) * kTileKeys);
    }

    SpanHeads(const AttentionArgs& args, std::size_t first_head, std::size_t n_heads, bool ahead, float* scratch)
        : a_(args),
          n_(n_heads),
          ahead_(ahead),
          k_(span_kernels(args.k)),
          v_(span_kernels(args.v)),
          k_units_(args.exact ? nullptr : unit_kernels(args.k, args.head_dim_k)),
          v_units_(args.exact ? nullptr : unit_kernels(args.v, args.head_dim_v)),
          open_(kernels_for<FloatRuns<F16Element>>()),
          k_stride_(padded(args.head_dim_k)),
          v_stride_(padded(args.head_dim_v)),
          q_(scratch),
          q_runs_(q_ + kHeadsAtOnce * k_stride_),
          q_scaled_(q_runs_ + kHeadsAtOnce * k_stride_),
          q_split_(reinterpret_cast<std::uint8_t*>(q_scaled_ + kHeadsAtOnce * k_stride_)),
          acc_(q_scaled_ + 2 * kHeadsAtOnce * k_stride_),
          scores_(acc_ + kHeadsAtOnce * v_stride_),
          products_(scores_ + kHeadsAtOnce * kTileKeys),
          weights_(products_ + kHeadsAtOnce * kTileKeys) {
        for (std::size_t h = 0; h < n_; ++h) {
            float* q = q_ + h * k_stride_;
            std::memcpy(q, a_.q + (first_head + h) * a_.q_head_stride, a_.head_dim_k * sizeof *q);
            for (std::size_t d = a_.head_dim_k; d < k_stride_; ++d) q[d] = 0;
            order(q, q_runs_ + h * k_stride_);
            for (std::size_t d = 0; d < v_stride_; ++d) acc_[h * v_stride_ + d] = 0;
            softmax_[h] = {-__builtin_inff(), zero()};
            for (std::size_t g = 0; g < kMostGroups; ++g) {
                zeros_[h][g] = zero();
                q_sums_[h][g] = 0;
            }
        }
        if (!has_codes(a_.k) || a_.k.group == 0) return;
        for (std::size_t h = 0; h < n_; ++h)
            for (std::size_t g = 0; g < a_.head_dim_k / a_.k.group; ++g) {
                const std::size_t first = h * k_stride_ + g * a_.k.group;
                if (k_units_) q_splits_[h][g] = split_query(q_runs_ + first, a_.k.group, q_split_ + 2 * first);
                if (a_.k.zero_offset == 0) continue;
                F32x16 total = zero();
                for (std::size_t d = 0; d < a_.k.group; d += 16) total = total + load(q_ + first + d);
                q_sums_[h][g] = sum(total);
            }
    }

    // Keys [begin, end) of the tile; `more`: the next one will be read too.
    void add_tile(std::size_t tile, std::size_t begin, std::size_t end, bool more) {
        score(tile, begin, end, more && ahead_);
        weigh(begin, end);
        add_values(tile, begin, end, more && ahead_);
    }

    void store_parts(float* parts, std::size_t stride) const {
        for (std::size_t h = 0; h < n_; ++h) {
            float* part = parts + h * stride;
            const float* acc = acc_ + h * v_stride_;
            part[0] = softmax_[h].max;
            part[1] = sum(softmax_[h].sum);
            for (std::size_t d = 0; d < a_.head_dim_v; ++d)
                part[2 + d] = acc[v_.paired ? d / 32 * 32 + d % 2 * 16 + d % 32 / 2 : d];
            if (!has_codes(a_.v) || a_.v.zero_offset == 0) continue;
            for (std::size_t g = 0; g < a_.head_dim_v / a_.v.group; ++g) {
                const float low = sum(zeros_[h][g]);
                for (std::size_t d = 0; d < a_.v.group; ++d) part[2 + g * a_.v.group + d] += low;
            }
        }
    }

private:
    static bool has_codes(const KvView& view) { return view.codes != KvCodes::floats; }

    // visit(Count<n_>).
    template <int N>
    struct Count {
        static constexpr int value = N;
    };
    template <class Visit>
    HETERO_INLINE void visit_heads(Visit visit) {
        if constexpr (kHeadsAtOnce > 1) {
            if (n_ == 2) return visit(Count<2>());
            if (n_ == 3) return visit(Count<3>());
            if (n_ == 4) return visit(Count<4>());
        }
        visit(Count<1>());
    }

    void weigh(std::size_t begin, std::size_t end) {
        visit_heads([&](auto heads) {
            constexpr int kHeads = decltype(heads)::value;
            if (begin == 0 && end == kTileKeys)
                weigh_keys<kHeads, true>(scores_, kTileKeys, begin, end, a_.scale, a_.softcap, softmax_, correction_);
            else
                weigh_keys<kHeads, false>(scores_, kTileKeys, begin, end, a_.scale, a_.softcap, softmax_, correction_);
        });
    }

    // Queries in the order of the keys' runs.
    HETERO_INLINE void order(const float* from, float* to) const {
        for (std::size_t d = 0; d < k_stride_; d += 32) {
            F32x16 first = load(from + d), second = load(from + d + 16);
            if (k_.paired) load_pairs(from + d, first, second);
            store(to + d, first);
            store(to + d + 16, second);
        }
    }

    TileRows rows(const KvView& view, std::size_t tile, std::size_t begin, bool more) const {
        const std::size_t bytes = row_bytes(view), offset = view.offset + begin * bytes;
        const auto at = [&](std::size_t page) {
            return reinterpret_cast<const std::uint8_t*>(view.pages[page]) + offset;
        };
        return {at(tile), bytes, more ? at(tile + 1) : nullptr};
    }
    static const std::uint16_t* halves(const KvView& view, std::size_t tile, std::size_t offset) {
        return reinterpret_cast<const std::uint16_t*>(view.pages[tile] + offset);
    }

    void score(std::size_t tile, std::size_t begin, std::size_t end, bool more) {
        const KvView& k = a_.k;
        std::size_t closed = end;  // keys from here on are open
        if (k.open != nullptr && tile * kTileKeys + end > k.open_begin) {
            const std::size_t from = tile * kTileKeys + begin;
            closed = k.open_begin > from ? k.open_begin - tile * kTileKeys : begin;
            const std::size_t first = tile * kTileKeys + closed - k.open_begin, bytes = 2 * a_.head_dim_k;
            const TileRows open{reinterpret_cast<const std::uint8_t*>(k.open) + first * bytes, bytes, nullptr};
            open_.dot[n_ - 1](open, end - closed, q_, k_stride_, 0, a_.head_dim_k, scores_ + closed);
        }
        if (closed == begin) return;
        if (!has_codes(k)) {
            k_.dot[n_ - 1](rows(k, tile, begin, more), closed - begin, q_, k_stride_, 0, a_.head_dim_k,
                           scores_ + begin);
        } else if (k.group != 0 && k_units_) {
            score_units(tile, begin, closed, more);
        } else if (k.group != 0) {
            for (std::size_t g = 0; g < a_.head_dim_k / k.group; ++g)
                score_group(tile, begin, closed, g, more && g == 0);
        } else {
            for (std::size_t key = begin; key < closed;) {
                const std::size_t block = key / k.group_tokens, to = smaller(closed, (block + 1) * k.group_tokens);
                score_block(tile, key, to, block, more);
                key = to;
            }
        }
    }

    // Dims that share a scale in each token: scores += dot * scale + zero * sum of q.
    void score_group(std::size_t tile, std::size_t begin, std::size_t end, std::size_t g, bool more) {
        const KvView& k = a_.k;
        k_.dot[n_ - 1](rows(k, tile, begin, more), end - begin, q_runs_, k_stride_, g * k.group, (g + 1) * k.group,
                       products_ + begin);
        const std::uint16_t* scale = halves(k, tile, k.scale_offset) + g * kTileKeys;
        const std::uint16_t* low = k.zero_offset == 0 ? nullptr : halves(k, tile, k.zero_offset) + g * kTileKeys;
        for (std::size_t h = 0; h < n_; ++h)
            for (std::size_t i = begin / 16 * 16; i < end; i += 16) {
                float* score = scores_ + h * kTileKeys + i;
                F32x16 value = load(products_ + h * kTileKeys + i) * (load_f16(scale + i) * splat(k_.factor));
                if (low) value = fma(load_f16(low + i), splat(q_sums_[h][g]), value);
                // The lanes of open keys have their scores already.
                const std::size_t from = i < begin ? begin - i : 0, to = smaller(16, end - i);
                store(score, where_between(from, to, g == 0 ? value : load(score) + value, load(score)));
            }
    }

    // `total` is what is to be taken off the dots of raised codes.
    Split split_query(const float* q, std::size_t dims, std::uint8_t* out) const {
        const Split whole = split(q, dims, out);
        return {whole.factor, raised_by(a_.k.codes) * whole.total};
    }

    // The same of all groups, in integers.
    void score_units(std::size_t tile, std::size_t begin, std::size_t end, bool more) {
        const KvView& k = a_.k;
        const TileRows keys = rows(k, tile, 0, more);
        const std::size_t groups = a_.head_dim_k / k.group, units = k.group / k_units_->dims;
        const std::uint16_t* scales = halves(k, tile, k.scale_offset);
        const std::uint16_t* lows = k.zero_offset == 0 ? nullptr : halves(k, tile, k.zero_offset);
        visit_heads([&](auto heads) {
            constexpr std::size_t kHeads = decltype(heads)::value;
            for (std::size_t i = begin / kTogether * kTogether; i < end; i += kTogether) {
                F32x16 values[kKeyRuns][kHeads];
#pragma GCC unroll 2
                for (auto& of_run : values)
#pragma GCC unroll 4
                    for (F32x16& value : of_run) value = zero();
                for (std::size_t g = 0; g < groups; ++g) {
                    I32x16 dots[kKeyRuns][kHeadsAtOnce];
                    k_units_->dot[kHeads - 1](rows_from(keys, i), g * units, (g + 1) * units, q_split_, 2 * k_stride_,
                                              dots);
#pragma GCC unroll 2
                    for (std::size_t run = 0; run < kKeyRuns; ++run) {
                        const std::size_t key = g * kTileKeys + i + 16 * run;
                        const F32x16 scale = load_f16(scales + key), low = lows ? load_f16(lows + key) : zero();
#pragma GCC unroll 4
                        for (std::size_t h = 0; h < kHeads; ++h) {
                            const Split& q = q_splits_[h][g];
                            const F32x16 dot = to_float(dots[run][h] - splat_int(q.total));
                            values[run][h] = fma(dot, scale * splat(q.factor), values[run][h]);
                            if (lows) values[run][h] = fma(low, splat(q_sums_[h][g]), values[run][h]);
                        }
                    }
                }
                for (std::size_t run = 0; run < kKeyRuns; ++run)
                    set_scores<kHeads>(i + 16 * run, begin, end, values[run]);
            }
        });
    }

    static constexpr std::size_t kTogether = 16 * kKeyRuns;  // keys
    static TileRows rows_from(const TileRows& rows, std::size_t i) {
        const std::size_t offset = i * rows.row_bytes;
        return {rows.data + offset, rows.row_bytes, rows.next ? rows.next + offset : nullptr};
    }

    // Those of 16 keys from i on, of which [begin, end) are wanted; others may have theirs already.
    template <std::size_t N>
    HETERO_INLINE void set_scores(std::size_t i, std::size_t begin, std::size_t end, const F32x16 (&values)[N]) {
        if (i + 16 <= begin || i >= end) return;
        const std::size_t from = i < begin ? begin - i : 0, to = smaller(16, end - i);
#pragma GCC unroll 4
        for (std::size_t h = 0; h < N; ++h) {
            float* score = scores_ + h * kTileKeys + i;
            store(score, from == 0 && to == 16 ? values[h] : where_between(from, to, values[h], load(score)));
        }
    }

    // Tokens that share a scale for each dim: the scales go to the query.
    void score_block(std::size_t tile, std::size_t begin, std::size_t end, std::size_t block, bool more) {
        const KvView& k = a_.k;
        const std::uint16_t* scale = halves(k, tile, k.scale_offset) + block * a_.head_dim_k;
        const std::uint16_t* low =
            k.zero_offset == 0 ? nullptr : halves(k, tile, k.zero_offset) + block * a_.head_dim_k;
        float added[kHeadsAtOnce] = {};
        for (std::size_t h = 0; h < n_; ++h) {
            const float* q = q_ + h * k_stride_;
            float* scaled = q_scaled_ + h * k_stride_;
            F32x16 total = zero();
            for (std::size_t d = 0; d < a_.head_dim_k; d += 16) {
                store(products_ + d % 32, load(q + d) * load_f16(scale + d));
                if (low) total = fma(load(q + d), load_f16(low + d), total);
                if (!k_.paired) {
                    store(scaled + d, load(products_ + d % 32));
                } else if (d % 32 == 16) {
                    F32x16 even, odd;
                    load_pairs(products_, even, odd);
                    store(scaled + d - 16, even);
                    store(scaled + d, odd);
                }
            }
            if (low) added[h] = sum(total);
        }
        if (k_units_) return score_block_units(tile, begin, end, added, more);
        k_.dot[n_ - 1](rows(k, tile, begin, more), end - begin, q_scaled_, k_stride_, 0, a_.head_dim_k,
                       scores_ + begin);
        if (!low) return;
        for (std::size_t h = 0; h < n_; ++h)
            for (std::size_t i = begin / 16 * 16; i < end; i += 16) {
                float* score = scores_ + h * kTileKeys + i;
                const std::size_t from = i < begin ? begin - i : 0, to = smaller(16, end - i);
                store(score, where_between(from, to, load(score) + splat(added[h]), load(score)));
            }
    }

    void score_block_units(std::size_t tile, std::size_t begin, std::size_t end, const float* added, bool more) {
        const TileRows keys = rows(a_.k, tile, 0, more);
        Split scaled[kHeadsAtOnce] = {};
        for (std::size_t h = 0; h < n_; ++h)
            scaled[h] = split_query(q_scaled_ + h * k_stride_, a_.head_dim_k, q_split_ + 2 * h * k_stride_);
        for (std::size_t i = begin / kTogether * kTogether; i < end; i += kTogether) {
            I32x16 dots[kKeyRuns][kHeadsAtOnce];
            k_units_->dot[n_ - 1](rows_from(keys, i), 0, a_.head_dim_k / k_units_->dims, q_split_, 2 * k_stride_, dots);
            visit_heads([&](auto heads) {
                constexpr std::size_t kHeads = decltype(heads)::value;
                for (std::size_t run = 0; run < kKeyRuns; ++run) {
                    F32x16 values[kHeads];
#pragma GCC unroll 4
                    for (std::size_t h = 0; h < kHeads; ++h) {
                        const F32x16 dot = to_float(dots[run][h] - splat_int(scaled[h].total));
                        values[h] = fma(dot, splat(scaled[h].factor), splat(added[h]));
                    }
                    set_scores<kHeads>(i + 16 * run, begin, end, values);
                }
            });
        }
    }

    void add_values(std::size_t tile, std::size_t begin, std::size_t end, bool more) {
        const KvView& v = a_.v;
        const TileRows values = rows(v, tile, begin, more);
        if (!has_codes(v)) {
            v_.add[n_ - 1](values, end - begin, scores_ + begin, kTileKeys, correction_, acc_, v_stride_, 0,
                           a_.head_dim_v);
            return;
        }
        if (v_units_) return add_units(tile, begin, end, more);
        const std::size_t groups = a_.head_dim_v / v.group;
        for (std::size_t h = 0; h < n_; ++h)
            for (std::size_t g = 0; g < groups; ++g) scale_weights(h, g, tile, begin, end);
        for (std::size_t g = 0; g < groups; ++g) {
            const TileRows part{values.data, values.row_bytes, g == 0 ? values.next : nullptr};
            v_.add[n_ - 1](part, end - begin, weights_ + g * kTileKeys + begin, kMostGroups * kTileKeys, correction_,
                           acc_, v_stride_, g * v.group, (g + 1) * v.group);
        }
    }

    void add_units(std::size_t tile, std::size_t begin, std::size_t end, bool more) {
        const std::size_t groups = a_.head_dim_v / a_.v.group, units = a_.v.group / v_units_->dims;
        TileRows values = rows(a_.v, tile, 0, more);
        for (std::size_t g = 0; g < groups; ++g) {
            SplitWeights weights[kHeadsAtOnce];
            visit_heads([&](auto heads) {
                constexpr int kHeads = decltype(heads)::value;
                if (begin == 0 && end == kTileKeys)
                    split_weights<kHeads, true>(g, tile, begin, end, weights);
                else
                    split_weights<kHeads, false>(g, tile, begin, end, weights);
            });
            v_units_->add[n_ - 1](values, begin / 16, (end + 15) / 16, g * units, (g + 1) * units, weights, correction_,
                                  acc_, v_stride_);
            values.next = nullptr;
        }
    }

    // Of N heads, step by step for all of them. Whole: all keys of the tile.
    template <int N, bool Whole>
    void split_weights(std::size_t g, std::size_t tile, std::size_t begin, std::size_t end, SplitWeights* out) {
        const std::size_t first_run = Whole ? 0 : begin / 16, end_run = Whole ? kTileKeys / 16 : (end + 15) / 16;
        F32x16 weights[N][kTileKeys / 16] = {}, top[N], total[N];
#pragma GCC unroll 4
        for (std::size_t h = 0; h < N; ++h) {
            total[h] = top[h] = zero();
            for_weights<Whole>(
                h, g, tile, begin, end, [&](std::size_t run, F32x16 weight) __attribute__((always_inline)) {
                    weights[h][run] = weight;
                    top[h] = max(weight, top[h]);
                });
        }
        float largest[N];
#pragma GCC unroll 4
        for (std::size_t h = 0; h < N; ++h) largest[h] = max_lane(top[h]);
#pragma GCC unroll 4
        for (std::size_t h = 0; h < N; ++h) {
            const F32x16 inverse = splat(split_inverse(largest[h]));
            auto* numbers = reinterpret_cast<std::uint8_t*>(weights_ + (h * kMostGroups + g) * kTileKeys);
#pragma GCC unroll 4
            for (std::size_t run = first_run; run < end_run; ++run) {
                const I32x16 rounded = round_to_int(weights[h][run] * inverse);
                store_split(numbers + kSplitBytes * run, rounded);
                total[h] = total[h] + to_float(rounded);
            }
            out[h] = {numbers, split_factor(largest[h]), 0};
        }
        if (raised_by(a_.v.codes) == 0) return;
#pragma GCC unroll 4
        for (std::size_t h = 0; h < N; ++h) {
            // Exact; beyond an int where a weight is NaN, as is the sum of the weights then.
            const float raised = static_cast<float>(raised_by(a_.v.codes)) * sum(total[h]);
            if (raised >= 0 && raised < 0x1p31F) out[h].raised = static_cast<int>(raised);
        }
    }

    void scale_weights(std::size_t h, std::size_t g, std::size_t tile, std::size_t begin, std::size_t end) {
        float* to = weights_ + (h * kMostGroups + g) * kTileKeys;
        for_weights<false>(
            h, g, tile, begin,
            end, [&](std::size_t run, F32x16 weight) __attribute__((always_inline)) { store(to + 16 * run, weight); });
    }

    // visit(run, weights * scales) for each 16 keys, 0 where they are not in sight; weights * zeros are summed.
    template <bool Whole, class Visit>
    HETERO_INLINE void for_weights(std::size_t h, std::size_t g, std::size_t tile, std::size_t begin, std::size_t end,
                                   Visit visit) {
        const KvView& v = a_.v;
        const std::uint16_t* scale = halves(v, tile, v.scale_offset) + g * kTileKeys;
        const std::uint16_t* low = v.zero_offset == 0 ? nullptr : halves(v, tile, v.zero_offset) + g * kTileKeys;
        F32x16 zeros = low ? zeros_[h][g] * correction_[h] : zero();
        const std::size_t end_run = Whole ? kTileKeys / 16 : (end + 15) / 16;
#pragma GCC unroll 4
        for (std::size_t run = Whole ? 0 : begin / 16; run < end_run; ++run) {
            const std::size_t i = 16 * run, from = i < begin ? begin - i : 0, to = smaller(16, end - i);
            const bool all = Whole || (from == 0 && to == 16);
            const F32x16 weight = load(scores_ + h * kTileKeys + i);
            const F32x16 scaled = weight * (load_f16(scale + i) * splat(v_.factor));
            visit(run, all ? scaled : where_between(from, to, scaled, zero()));
            if (!low) continue;
            const F32x16 added = weight * load_f16(low + i);
            zeros = zeros + (all ? added : where_between(from, to, added, zero()));
        }
        if (low) zeros_[h][g] = zeros;
    }

    const AttentionArgs& a_;
    std::size_t n_;
    bool ahead_;
    const SpanKernels &k_, &v_;
    const UnitKernels *k_units_, *v_units_;  // null: in f32
    const SpanKernels& open_;
    std::size_t k_stride_, v_stride_;
    float *q_, *q_runs_, *q_scaled_;  // [head][dim]: as given, in the order of runs, times the scales of a block
    std::uint8_t* q_split_;           // [head], of q_runs_ or q_scaled_
    float* acc_;                      // [head][dim], in the order of runs
    float *scores_, *products_;       // [head][key of the tile]; scores become weights
    float* weights_;                  // [head][group][key of the tile], times the scales
    Softmax softmax_[kHeadsAtOnce];
    F32x16 correction_[kHeadsAtOnce];
    F32x16 zeros_[kHeadsAtOnce][kMostGroups];  // by key mod 16: the sum of weight * zero
    float q_sums_[kHeadsAtOnce][kMostGroups];
    Split q_splits_[kHeadsAtOnce][kMostGroups];
};

void attention_span(const AttentionArgs& a, std::size_t key_begin, std::size_t key_end, float* parts,
                    std::size_t parts_stride) {
    float* scratch = SpanHeads::scratch_floats(a) <= kScratchFloats ? thread_scratch() : nullptr;
    if (!scratch || !has_kernels(a.k, a.head_dim_k) || !has_kernels(a.v, a.head_dim_v) ||
        (a.v.codes != KvCodes::floats && a.v.group == 0)) {
        return ref::attention_span(a, key_begin, key_end, parts, parts_stride);
    }
    const std::size_t first_tile = key_begin / kTileKeys, end_tile = (key_end + kTileKeys - 1) / kTileKeys;
    const std::size_t end_ahead = a.kv_tokens > key_end ? (a.kv_tokens + kTileKeys - 1) / kTileKeys : end_tile;
    for (std::size_t head = 0; head < a.n_heads; head += kHeadsAtOnce) {
        // The first heads bring the keys and values into the cache.
        SpanHeads heads(a, head, smaller(kHeadsAtOnce, a.n_heads - head), head == 0, scratch);
        for (std::size_t tile = first_tile; tile < end_tile; ++tile) {
            const std::size_t base = tile * kTileKeys;
            heads.add_tile(tile, key_begin > base ? key_begin - base : 0, smaller(kTileKeys, key_end - base),
                           tile + 1 < end_ahead);
        }
        heads.store_parts(parts + head * parts_stride, parts_stride);
    }
}

[[maybe_unused]] void attention_merge(const float* parts, std::size_t n_spans, std::size_t head_dim, float* out) {
    const std::size_t stride = head_dim + 2;
    float max = parts[0];
    for (std::size_t span = 1; span < n_spans; ++span) max = parts[span * stride] > max ? parts[span * stride] : max;
    F32x16 total = zero();
    for (std::size_t d = 0; d < head_dim; ++d) out[d] = 0;
    for (std::size_t span = 0; span < n_spans; ++span) {
        const float* part = parts + span * stride;
        const F32x16 weight = exp(splat(part[0]) - splat(max));
        total = fma(weight, splat(part[1]), total);
        std::size_t d = 0;
        for (; d + 16 <= head_dim; d += 16) store(out + d, fma(weight, load(part + 2 + d), load(out + d)));
        if (d < head_dim) {
            const std::size_t n = head_dim - d;
            store(out + d, fma(weight, load(part + 2 + d, n), load(out + d, n)), n);
        }
    }
    scale_to(out, total, head_dim);
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
