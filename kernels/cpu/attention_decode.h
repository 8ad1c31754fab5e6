// Attention of one query over spans of keys, for the heads that share K and V: a step of decode. K and V are read
// once, in the type they are kept in; codes are not multiplied by their scales one by one, scores and weights are.
// Spans give (max, sum, acc), as in Flash-Decoding (https://arxiv.org/abs/2311.01282), and are merged in order.
// Included once per instruction set, after attention.h.
#pragma once
#include "kernels/cpu/attention_runs.h"
//
#include "kernels/cpu/attention_codes.h"
//
#include "kernels/cpu/attention_pages.h"
//
#include "kernels/cpu/attention_keys.h"
//
#include "kernels/cpu/attention_values.h"

namespace hetero::kernels::HETERO_ISA {
namespace {

// For N heads: the scores p [head][key of the block] of the keys [begin, end) to weights, those of other keys in the
// same runs of 16 to 0. corrections: what the values so far must be multiplied by. fetch(i): before the i-th tile.
template <int N, class Fetch>
HETERO_INLINE void weigh_block(float* p, std::size_t begin, std::size_t end, float scale, float softcap,
                               Softmax* softmax, F32x16* corrections, Fetch fetch) {
    const F32x16 lowest = splat(-__builtin_inff());
    const std::size_t end_run = (end + 15) / 16;
    F32x16 top[N], maxima[N], sums[N];
#pragma GCC unroll 4
    for (F32x16& t : top) t = lowest;
    for (std::size_t run = begin / 16; run < end_run; ++run) {
        const std::size_t from = run * 16 < begin ? begin - run * 16 : 0, to = smaller(16, end - run * 16);
#pragma GCC unroll 4
        for (std::size_t h = 0; h < N; ++h) {
            F32x16 s = load(p + h * kBlockKeys + 16 * run) * splat(scale);
            if (softcap > 0) s = tanh(s / splat(softcap)) * splat(softcap);
            if (from != 0 || to != 16) s = where_between(from, to, s, lowest);
            store(p + h * kBlockKeys + 16 * run, s);
            top[h] = max(s, top[h]);
        }
    }
#pragma GCC unroll 4
    for (std::size_t h = 0; h < N; ++h) {
        const float block_max = max_lane(top[h]);
        const float new_max = block_max > softmax[h].max ? block_max : softmax[h].max;
        maxima[h] = splat(new_max);
        corrections[h] = splat(1.0F);
        if (new_max != softmax[h].max) {
            corrections[h] = exp(splat(softmax[h].max) - maxima[h]);
            softmax[h].sum = softmax[h].sum * corrections[h];
            softmax[h].max = new_max;
        }
        sums[h] = softmax[h].sum;
    }
    const auto weigh = [&]<std::size_t Runs>(std::size_t run) __attribute__((always_inline)) {
        if (run % (kTileKeys / 16) == 0) fetch(run / (kTileKeys / 16));
        F32x16 x[N * Runs];
#pragma GCC unroll 16
        for (std::size_t i = 0; i < N * Runs; ++i)
            x[i] = load(p + i % N * kBlockKeys + 16 * (run + i / N)) - maxima[i % N];
        exp(x);
#pragma GCC unroll 16
        for (std::size_t i = 0; i < N * Runs; ++i) {
            sums[i % N] = sums[i % N] + x[i];
            store(p + i % N * kBlockKeys + 16 * (run + i / N), x[i]);
        }
    };
    constexpr std::size_t kRuns = kParts == 1 ? 12 / N : 1;
    std::size_t run = begin / 16;
    for (; run + kRuns <= end_run; run += kRuns) weigh.template operator()<kRuns>(run);
    for (; run < end_run; ++run) weigh.template operator()<1>(run);
#pragma GCC unroll 4
    for (std::size_t h = 0; h < N; ++h) softmax[h].sum = sums[h];
}

// Up to kHeadsAtOnce heads on their way through a span.
class SpanHeads {
public:
    static std::size_t scratch_floats(const AttentionArgs& a) {  // at most; the same on every instruction set
        return 4 * (SpanKeys::kStrides * SpanKeys::padded(a.head_dim_k) + SpanKeys::padded(a.head_dim_v) +
                    2 * kBlockKeys + SpanValues::kWeightFloats);
    }

    // `end_page`: pages from there on are not read.
    SpanHeads(const AttentionArgs& args, std::size_t end_page, float* scratch)
        : a_(args),
          scores_(scratch),
          keys_({args.k, args.head_dim_k, end_page}, args.exact, scratch + 2 * kHeadsAtOnce * kBlockKeys, scores_,
                scratch + kHeadsAtOnce * kBlockKeys),
          values_({args.v, args.head_dim_v, end_page}, args.exact,
                  scratch + kHeadsAtOnce * (2 * kBlockKeys + SpanKeys::kStrides * SpanKeys::padded(args.head_dim_k)),
                  scores_),
          // Those that are widened to floats are fetched a tile ahead, and go tile by tile.
          block_keys_(keys_.in_integers() && values_.in_integers() ? kBlockKeys : kTileKeys) {}

    // The heads that the next span is of. Others have fetched its keys and values if these are not the first.
    void take_heads(std::size_t first_head, std::size_t n_heads) {
        n_ = n_heads;
        fetches_ = first_head == 0;
        keys_.take(a_.q + first_head * a_.q_head_stride, a_.q_head_stride, n_heads, fetches_);
    }

    // parts [head], `stride` floats apart: of the keys [begin, end). `first`: nobody has fetched them yet.
    void attend(std::size_t begin, std::size_t end, bool first, float* parts, std::size_t stride) {
        values_.take(n_, fetches_);
        for (std::size_t h = 0; h < n_; ++h) softmax_[h] = {-__builtin_inff(), zero()};
        for (std::size_t base = begin / block_keys_ * block_keys_; base < end; base += block_keys_)
            add_block(base / kTileKeys, begin > base ? begin - base : 0, smaller(block_keys_, end - base),
                      first && base <= begin);
        for (std::size_t h = 0; h < n_; ++h) {
            float* part = parts + h * stride;
            part[0] = softmax_[h].max;
            part[1] = sum(softmax_[h].sum);
            values_.store_sums(h, part + 2);
        }
    }

private:
    // Keys [begin, end) of the block that begins with a page.
    void add_block(std::size_t page, std::size_t begin, std::size_t end, bool first) {
        KeyTile tiles[kBlockTiles];
        std::size_t n = 0;
        for (std::size_t i = begin / kTileKeys; i * kTileKeys < end; ++i) {
            const std::size_t base = i * kTileKeys;
            tiles[n++] = {page + i, i, begin > base ? begin - base : 0, smaller(kTileKeys, end - base)};
        }
        if (first) keys_.fetch_first(tiles[0].page);
        for (std::size_t i = 0; i < n; ++i) {
            if (first) {
                keys_.fetch_first(tiles[i].page + 1);
                values_.fetch_first(tiles[i].page);
            }
            keys_.score(tiles[i]);
        }
        F32x16 corrections[kHeadsAtOnce];
        visit_heads(n_, [&](auto heads) {
            weigh_block<decltype(heads)::value>(
                scores_, begin, end, a_.scale, a_.softcap, softmax_,
                corrections, [&](std::size_t i) __attribute__((always_inline)) {
                    if (i < n) keys_.fetch_ahead(tiles[i]);
                });
        });
        values_.add(tiles, n, corrections);
    }

    const AttentionArgs& a_;
    std::size_t n_ = 0;
    bool fetches_ = false;
    float* scores_;  // [head][key of the block]; they become weights
    SpanKeys keys_;
    SpanValues values_;
    std::size_t block_keys_;
    Softmax softmax_[kHeadsAtOnce];
};

void attention_spans(const AttentionArgs& a, std::size_t key_begin, std::size_t key_end, std::size_t span, float* parts,
                     std::size_t parts_stride) {
    float* scratch = SpanHeads::scratch_floats(a) <= kScratchFloats ? thread_scratch() : nullptr;
    if (!scratch || !has_kernels(a.k, a.head_dim_k) || !has_kernels(a.v, a.head_dim_v) ||
        (a.v.codes != KvCodes::floats && a.v.group == 0)) {
        return ref::attention_spans(a, key_begin, key_end, span, parts, parts_stride);
    }
    SpanHeads heads(a, (key_end + kTileKeys - 1) / kTileKeys, scratch);
    const bool together = a.n_heads <= kHeadsAtOnce;
    if (together) heads.take_heads(0, a.n_heads);
    for (std::size_t begin = key_begin; begin < key_end; parts += a.head_dim_v + 2) {
        const std::size_t end = smaller(key_end, (begin / span + 1) * span);
        for (std::size_t head = 0; head < a.n_heads; head += kHeadsAtOnce) {
            if (!together) heads.take_heads(head, smaller(kHeadsAtOnce, a.n_heads - head));
            heads.attend(begin, end, begin == key_begin, parts + head * parts_stride, parts_stride);
        }
        begin = end;
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
