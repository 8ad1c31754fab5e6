// Products of a step of decode with keys and values that are widened to f32 in registers: floats, and codes, whose
// scales are applied to queries, scores and weights. Included by attention_decode.h, once per instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

constexpr int kHeadsAtOnce = kParts == 1 ? 4 : 1;  // sums that fit the registers
constexpr std::size_t kMostGroups = 8;             // scales of a token and head
// Tiles of codes that are scored, weighed and added together: a step for all of them hides what one waits for, while
// the codes of two blocks still lie in an L1 cache.
constexpr std::size_t kBlockTiles = 2, kBlockKeys = kBlockTiles * kTileKeys;

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

// Rows of a tile, and the same rows of the next one, to be fetched meanwhile (null: none).
struct TileRows {
    const std::uint8_t* data;
    std::size_t row_bytes;
    const std::uint8_t* next;
};

struct ByteRange {
    const std::uint8_t *begin, *end;
};

// scores[head][key of the block] = q[head] . k[key] over the dims [first, end), `first` a multiple of 16, for N heads.
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
        store_sums(acc, scores + key, kBlockKeys);
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
            scores[h * kBlockKeys + key] = sum(acc);
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

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
