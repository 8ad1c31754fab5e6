// Attention of one query over a span of keys, for the heads that share K and V: a step of decode. K and V are read
// once, in the type they are kept in, and are widened in registers; codes are not multiplied by their scales one by
// one, scores and weights are. Spans give (max, sum, acc), as in Flash-Decoding (https://arxiv.org/abs/2311.01282), and
// are merged in order. Included by generic.h, once per instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

constexpr int kHeadsAtOnce = kParts == 1 ? 4 : 1;  // sums that fit the registers
constexpr std::size_t kMostGroups = 8;             // scales of a token and head

// 16 lanes of a row: run r has dims 16 r to 16 r + 15, or, of codes of 4 bits, every other dim of a block of 32, the
// even ones first. Values are to be multiplied by kFactor.
template <class Element>
struct FloatRuns {
    static constexpr bool kPaired = false;
    static constexpr float kFactor = 1;
    template <int Odd>
    static HETERO_INLINE F32x16 at(const std::uint8_t* row, std::size_t r) {
        return Element::load_lanes(reinterpret_cast<const typename Element::Type*>(row) + 16 * r);
    }
    static HETERO_INLINE F32x16 some(const std::uint8_t* row, std::size_t r, std::size_t n) {
        return load_some<Element>(reinterpret_cast<const typename Element::Type*>(row) + 16 * r, n);
    }
};
struct CodeRuns {
    static constexpr bool kPaired = false;
    static constexpr float kFactor = 1;
    static HETERO_INLINE F32x16 some(const std::uint8_t*, std::size_t, std::size_t) {
        return zero();
    }  // whole runs only
};
struct I8Runs : CodeRuns {
    template <int Odd>
    static HETERO_INLINE F32x16 at(const std::uint8_t* row, std::size_t r) {
        return signed_values(bytes_load(row + 16 * r));
    }
};
struct U8Runs : CodeRuns {
    template <int Odd>
    static HETERO_INLINE F32x16 at(const std::uint8_t* row, std::size_t r) {
        return unsigned_values(bytes_load(row + 16 * r));
    }
};
struct E4m3fnRuns : CodeRuns {
    static constexpr float kFactor = 256;
    template <int Odd>
    static HETERO_INLINE F32x16 at(const std::uint8_t* row, std::size_t r) {
        return load_e4m3fn(row + 16 * r);
    }
};
template <int Odd>
HETERO_INLINE I32x16 paired_codes(const std::uint8_t* row, std::size_t r) {  // in the low 4 bits; Odd: r % 2
    const I32x16 both = widen_unsigned(bytes_load(row + 16 * (r / 2)));
    return Odd == 0 ? both : shift_right<4>(both);
}
struct U4Runs : CodeRuns {
    static constexpr bool kPaired = true;
    template <int Odd>
    static HETERO_INLINE F32x16 at(const std::uint8_t* row, std::size_t r) {
        return lookup(iota(), paired_codes<Odd>(row, r));
    }
};
struct I4Runs : CodeRuns {
    static constexpr bool kPaired = true;
    template <int Odd>
    static HETERO_INLINE F32x16 at(const std::uint8_t* row, std::size_t r) {
        return signed_nibbles(paired_codes<Odd>(row, r));
    }
};

HETERO_INLINE void prefetch(const std::uint8_t* p, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

// Rows of a tile, and the same rows of the next one, to be fetched meanwhile (null: none).
struct TileRows {
    const std::uint8_t* data;
    std::size_t row_bytes;
    const std::uint8_t* next;
};

// scores[head][key] = q[head] . k[key] over the dims [first, end), `first` a multiple of 16, for N heads.
template <class Runs, int N>
void dot_keys(TileRows k, std::size_t n_keys, const float* q, std::size_t q_stride, std::size_t first, std::size_t end,
              float* scores) {
    const std::size_t first_run = first / 16, end_run = end / 16, left = end % 16;
    std::size_t key = 0;
    for (; key + 4 <= n_keys; key += 4) {
        const std::uint8_t* rows = k.data + key * k.row_bytes;
        if (k.next) prefetch(k.next + key * k.row_bytes, 4 * k.row_bytes);
        F32x16 acc[N][4];
#pragma GCC unroll 4
        for (int h = 0; h < N; ++h)
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) acc[h][j] = zero();
        const auto take = [&](const float* q_run, const F32x16(&values)[4]) __attribute__((always_inline)) {
#pragma GCC unroll 4
            for (int h = 0; h < N; ++h) {
                const F32x16 qd = load(q_run + static_cast<std::size_t>(h) * q_stride);
#pragma GCC unroll 4
                for (int j = 0; j < 4; ++j) acc[h][j] = fma(qd, values[j], acc[h][j]);
            }
        };
        F32x16 values[4];
        const auto row = [&](int j) { return rows + static_cast<std::size_t>(j) * k.row_bytes; };
        std::size_t r = first_run;
        for (; r + 2 <= end_run; r += 2) {
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) values[j] = Runs::template at<0>(row(j), r);
            take(q + 16 * r, values);
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) values[j] = Runs::template at<1>(row(j), r + 1);
            take(q + 16 * (r + 1), values);
        }
        if (r < end_run) {  // not of pairs
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) values[j] = Runs::template at<0>(row(j), r);
            take(q + 16 * r, values);
        }
        if (left != 0) {
            for (int j = 0; j < 4; ++j) values[j] = Runs::some(row(j), end_run, left);
            take(q + 16 * end_run, values);
        }
        store_sums(acc, scores + key, kTileKeys);
    }
    for (; key < n_keys; ++key) {
        const std::uint8_t* row = k.data + key * k.row_bytes;
        for (std::size_t h = 0; h < N; ++h) {
            const float* qh = q + h * q_stride;
            F32x16 acc = zero();
            for (std::size_t r = first_run; r < end_run; ++r)
                acc = fma(load(qh + 16 * r), r % 2 == 0 ? Runs::template at<0>(row, r) : Runs::template at<1>(row, r),
                          acc);
            if (left != 0) acc = fma(load(qh + 16 * end_run), Runs::some(row, end_run, left), acc);
            scores[h * kTileKeys + key] = sum(acc);
        }
    }
}

// acc[head] = acc[head] * correction[head] + the sum of weights[head][key] * v[key], R runs from `run` on, an even
// number where R is even, of which the last has `left` dims (0: all).
template <class Runs, int N, int R>
HETERO_INLINE void add_runs(TileRows v, std::size_t n_keys, const float* weights, std::size_t weights_stride,
                            const F32x16* correction, float* acc, std::size_t acc_stride, std::size_t run,
                            std::size_t left) {
    F32x16 sums[N][R];
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
            sums[h][r] =
                load(acc + static_cast<std::size_t>(h) * acc_stride + 16 * (run + static_cast<std::size_t>(r))) *
                correction[h];
    for (std::size_t key = 0; key < n_keys; ++key) {
        const std::uint8_t* row = v.data + key * v.row_bytes;
        if (v.next && key % 4 == 0) prefetch(v.next + key * v.row_bytes, 4 * v.row_bytes);
        F32x16 weight[N];
#pragma GCC unroll 4
        for (int h = 0; h < N; ++h) weight[h] = splat(weights[static_cast<std::size_t>(h) * weights_stride + key]);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const std::size_t at = run + static_cast<std::size_t>(r);
            const F32x16 value = R == 1 && left != 0 ? Runs::some(row, at, left)
                                 : r % 2 == 0        ? Runs::template at<0>(row, at)
                                                     : Runs::template at<1>(row, at);
#pragma GCC unroll 4
            for (int h = 0; h < N; ++h) sums[h][r] = fma(weight[h], value, sums[h][r]);
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
            store(acc + static_cast<std::size_t>(h) * acc_stride + 16 * (run + static_cast<std::size_t>(r)),
                  sums[h][r]);
}

// The same over the dims [first, end), `first` a multiple of 16.
template <class Runs, int N>
void add_rows(TileRows v, std::size_t n_keys, const float* weights, std::size_t weights_stride,
              const F32x16* correction, float* acc, std::size_t acc_stride, std::size_t first, std::size_t end) {
    std::size_t run = first / 16;
    for (; 16 * (run + 4) <= end; run += 4, v.next = nullptr)
        add_runs<Runs, N, 4>(v, n_keys, weights, weights_stride, correction, acc, acc_stride, run, 0);
    if (16 * (run + 2) <= end) {
        add_runs<Runs, N, 2>(v, n_keys, weights, weights_stride, correction, acc, acc_stride, run, 0);
        run += 2;
        v.next = nullptr;
    }
    for (; 16 * run < end; ++run, v.next = nullptr) {
        const std::size_t left = end - 16 * run < 16 ? end - 16 * run : 0;
        add_runs<Runs, N, 1>(v, n_keys, weights, weights_stride, correction, acc, acc_stride, run, left);
    }
}

// What one way to store K or V needs, for 1 to kHeadsAtOnce heads.
struct SpanKernels {
    decltype(&dot_keys<FloatRuns<F32Element>, 1>) dot[kHeadsAtOnce];
    decltype(&add_rows<FloatRuns<F32Element>, 1>) add[kHeadsAtOnce];
    bool paired;
    float factor;
};
template <class Runs>
const SpanKernels& kernels_for() {
    if constexpr (kHeadsAtOnce == 1) {
        static constexpr SpanKernels k{{dot_keys<Runs, 1>}, {add_rows<Runs, 1>}, Runs::kPaired, Runs::kFactor};
        return k;
    } else {
        static constexpr SpanKernels k{{dot_keys<Runs, 1>, dot_keys<Runs, 2>, dot_keys<Runs, 3>, dot_keys<Runs, 4>},
                                       {add_rows<Runs, 1>, add_rows<Runs, 2>, add_rows<Runs, 3>, add_rows<Runs, 4>},
                                       Runs::kPaired,
                                       Runs::kFactor};
        return k;
    }
}
const SpanKernels& span_kernels(const KvView& view) {
    switch (view.codes) {
        case KvCodes::i8:
            return kernels_for<I8Runs>();
        case KvCodes::u8:
            return kernels_for<U8Runs>();
        case KvCodes::i4:
            return kernels_for<I4Runs>();
        case KvCodes::u4:
            return kernels_for<U4Runs>();
        case KvCodes::e4m3fn:
            return kernels_for<E4m3fnRuns>();
        case KvCodes::floats:
            break;
    }
    if (view.dtype == DType::f16) return kernels_for<FloatRuns<F16Element>>();
    return view.dtype == DType::bf16 ? kernels_for<FloatRuns<BF16Element>>() : kernels_for<FloatRuns<F32Element>>();
}

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
        return 4 * (3 * padded(a.head_dim_k) + padded(a.head_dim_v) + (2 + kMostGroups) * kTileKeys);
    }

    SpanHeads(const AttentionArgs& args, std::size_t first_head, std::size_t n_heads, bool ahead, float* scratch)
        : a_(args),
          n_(n_heads),
          ahead_(ahead),
          k_(span_kernels(args.k)),
          v_(span_kernels(args.v)),
          open_(kernels_for<FloatRuns<F16Element>>()),
          k_stride_(padded(args.head_dim_k)),
          v_stride_(padded(args.head_dim_v)),
          q_(scratch),
          q_runs_(q_ + kHeadsAtOnce * k_stride_),
          q_scaled_(q_runs_ + kHeadsAtOnce * k_stride_),
          acc_(q_scaled_ + kHeadsAtOnce * k_stride_),
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
        if (has_codes(a_.k) && a_.k.group != 0 && a_.k.zero_offset != 0) {
            for (std::size_t h = 0; h < n_; ++h)
                for (std::size_t g = 0; g < a_.head_dim_k / a_.k.group; ++g) {
                    F32x16 total = zero();
                    for (std::size_t d = 0; d < a_.k.group; d += 16)
                        total = total + load(q_ + h * k_stride_ + g * a_.k.group + d);
                    q_sums_[h][g] = sum(total);
                }
        }
    }

    // Keys [begin, end) of the tile; `more`: the next one will be read too.
    void add_tile(std::size_t tile, std::size_t begin, std::size_t end, bool more) {
        score(tile, begin, end, more && ahead_);
        for (std::size_t h = 0; h < n_; ++h)
            correction_[h] = weigh_keys(scores_ + h * kTileKeys, begin, end, a_.scale, a_.softcap, softmax_[h]);
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

    void add_values(std::size_t tile, std::size_t begin, std::size_t end, bool more) {
        const KvView& v = a_.v;
        const TileRows values = rows(v, tile, begin, more);
        if (!has_codes(v)) {
            v_.add[n_ - 1](values, end - begin, scores_ + begin, kTileKeys, correction_, acc_, v_stride_, 0,
                           a_.head_dim_v);
            return;
        }
        const std::size_t groups = a_.head_dim_v / v.group;
        for (std::size_t h = 0; h < n_; ++h)
            for (std::size_t g = 0; g < groups; ++g) scale_weights(h, g, tile, begin, end);
        for (std::size_t g = 0; g < groups; ++g) {
            const TileRows part{values.data, values.row_bytes, g == 0 ? values.next : nullptr};
            v_.add[n_ - 1](part, end - begin, weights_ + g * kTileKeys + begin, kMostGroups * kTileKeys, correction_,
                           acc_, v_stride_, g * v.group, (g + 1) * v.group);
        }
    }

    void scale_weights(std::size_t h, std::size_t g, std::size_t tile, std::size_t begin, std::size_t end) {
        const KvView& v = a_.v;
        const std::uint16_t* scale = halves(v, tile, v.scale_offset) + g * kTileKeys;
        const std::uint16_t* low = v.zero_offset == 0 ? nullptr : halves(v, tile, v.zero_offset) + g * kTileKeys;
        if (low) zeros_[h][g] = zeros_[h][g] * correction_[h];
        for (std::size_t i = begin / 16 * 16; i < end; i += 16) {
            const std::size_t from = i < begin ? begin - i : 0, to = smaller(16, end - i);
            const F32x16 weight = load(scores_ + h * kTileKeys + i);
            store(weights_ + (h * kMostGroups + g) * kTileKeys + i, weight * (load_f16(scale + i) * splat(v_.factor)));
            if (low) zeros_[h][g] = zeros_[h][g] + where_between(from, to, weight * load_f16(low + i), zero());
        }
    }

    const AttentionArgs& a_;
    std::size_t n_;
    bool ahead_;
    const SpanKernels &k_, &v_, &open_;
    std::size_t k_stride_, v_stride_;
    float *q_, *q_runs_, *q_scaled_;  // [head][dim]: as given, in the order of runs, times the scales of a block
    float* acc_;                      // [head][dim], in the order of runs
    float *scores_, *products_;       // [head][key of the tile]; scores become weights
    float* weights_;                  // [head][group][key of the tile], times the scales
    Softmax softmax_[kHeadsAtOnce];
    F32x16 correction_[kHeadsAtOnce];
    F32x16 zeros_[kHeadsAtOnce][kMostGroups];  // by key mod 16: the sum of weight * zero
    float q_sums_[kHeadsAtOnce][kMostGroups];
};

void attention_span(const AttentionArgs& a, std::size_t key_begin, std::size_t key_end, float* parts,
                    std::size_t parts_stride) {
    float* scratch = SpanHeads::scratch_floats(a) <= kScratchFloats ? thread_scratch() : nullptr;
    if (!scratch || !has_kernels(a.k, a.head_dim_k) || !has_kernels(a.v, a.head_dim_v) ||
        (a.v.codes != KvCodes::floats && a.v.group == 0)) {
        return ref::attention_span(a, key_begin, key_end, parts, parts_stride);
    }
    const std::size_t first_tile = key_begin / kTileKeys, end_tile = (key_end + kTileKeys - 1) / kTileKeys;
    for (std::size_t head = 0; head < a.n_heads; head += kHeadsAtOnce) {
        // The first heads bring the keys and values into the cache.
        SpanHeads heads(a, head, smaller(kHeadsAtOnce, a.n_heads - head), head == 0, scratch);
        for (std::size_t tile = first_tile; tile < end_tile; ++tile) {
            const std::size_t base = tile * kTileKeys;
            heads.add_tile(tile, key_begin > base ? key_begin - base : 0, smaller(kTileKeys, key_end - base),
                           tile + 1 < end_tile);
        }
        heads.store_parts(parts + head * parts_stride, parts_stride);
    }
}

void attention_merge(const float* parts, std::size_t n_spans, std::size_t head_dim, float* out) {
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
