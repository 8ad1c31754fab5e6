// Products of a step of decode with keys and values of 4 or 8 bits, in exact integers: queries and weights are rounded
// to 16 bits (split.h), scales are applied to the sums. A head is taken in units of 16 bytes: 16 dims, or 32 of codes
// of 4 bits, the even ones first. Included by attention_decode.h, once per instruction set.
#pragma once
#include "kernels/cpu/split.h"

namespace hetero::kernels::HETERO_ISA {
namespace {

// Codes of a word as unsigned ones; `Odd`: of 4 bits, those of odd dims. They are raised by raised_by().
template <KvCodes Codes, bool Odd>
HETERO_INLINE Words unsigned_codes(Words v) {
    if constexpr (Codes == KvCodes::i8) v = bytes_flip(v, 0x80);
    if constexpr (Codes == KvCodes::i4) v = bytes_flip(v, 0x88);
    if constexpr (is_paired(Codes)) v = Odd ? high_nibbles(v) : low_nibbles(v);
    return v;
}
HETERO_INLINE int raised_by(KvCodes codes) { return codes == KvCodes::i8 ? 128 : codes == KvCodes::i4 ? 8 : 0; }

constexpr std::size_t kKeyRuns = kParts == 1 ? 2 : 1;  // of 16 keys, whose sums fit the registers together

template <KvCodes Codes, int N>
HETERO_INLINE void dot_rows(TileRows keys, std::size_t first, std::size_t end, const std::uint8_t* q,
                            std::size_t q_bytes, I32x16 (*dots)[kHeadsAtOnce]) {
    constexpr std::size_t kRuns = is_paired(Codes) ? 2 : 1;
    SplitSum sums[kKeyRuns][N][kParts];
#pragma GCC unroll 2
    for (std::size_t run = 0; run < kKeyRuns; ++run)
#pragma GCC unroll 4
        for (int h = 0; h < N; ++h)
#pragma GCC unroll 4
            for (int part = 0; part < kParts; ++part) sums[run][h][part] = split_zero();
    for (std::size_t unit = first; unit < end; ++unit) {
        if (keys.next) prefetch(keys.next + unit * kKeyRuns * 256, kKeyRuns * 256);
        Words words[kKeyRuns][4][kParts];
#pragma GCC unroll 2
        for (std::size_t run = 0; run < kKeyRuns; ++run)
            row_words(keys.data + 16 * run * keys.row_bytes + 16 * unit, keys.row_bytes, words[run]);
        const std::uint8_t* q_run = q + unit * kRuns * kSplitBytes;
#pragma GCC unroll 4
        for (std::size_t j = 0; j < 4; ++j)
#pragma GCC unroll 2
            for (std::size_t run = 0; run < kKeyRuns; ++run)
#pragma GCC unroll 4
                for (int part = 0; part < kParts; ++part) {
                    const Words even = unsigned_codes<Codes, false>(words[run][j][part]);
                    [[maybe_unused]] const Words odd = unsigned_codes<Codes, true>(words[run][j][part]);
#pragma GCC unroll 4
                    for (std::size_t h = 0; h < N; ++h) {
                        const std::uint8_t* four = q_run + h * q_bytes + 4 * j;
                        add_split(sums[run][h][part], even, four);
                        if constexpr (kRuns == 2) add_split(sums[run][h][part], odd, four + kSplitBytes);
                    }
                }
    }
#pragma GCC unroll 2
    for (std::size_t run = 0; run < kKeyRuns; ++run)
#pragma GCC unroll 4
        for (int h = 0; h < N; ++h) dots[run][h] = joined(sums[run][h]);
}

// dots[run][head][key] of kKeyRuns runs of 16 keys and the units [first, end) of N queries, `q` in the order of runs.
// Codes are raised.
template <KvCodes Codes, int N>
void dot_units(TileRows keys, std::size_t first, std::size_t end, const std::uint8_t* q, std::size_t q_bytes,
               I32x16 (*dots)[kHeadsAtOnce]) {
    constexpr std::size_t kUsual = is_paired(Codes) ? 32 : 64;  // constant strides need no registers
    if (keys.row_bytes == kUsual)
        return dot_rows<Codes, N>({keys.data, kUsual, keys.next}, first, end, q, q_bytes, dots);
    if (keys.row_bytes == 2 * kUsual)
        return dot_rows<Codes, N>({keys.data, 2 * kUsual, keys.next}, first, end, q, q_bytes, dots);
    dot_rows<Codes, N>(keys, first, end, q, q_bytes, dots);
}

// Of one head and a group: the weights of a tile's keys, and what is to be taken off the sums of raised codes.
struct SplitWeights {
    const std::uint8_t* numbers;
    float factor;
    int raised;
};

// acc[head] = acc[head] * correction[head] + the sum of weights * values over runs [first_run, end_run) of 16 keys, for
// U units.
template <KvCodes Codes, int N, int U>
HETERO_INLINE void add_columns(TileRows v, std::size_t first_run, std::size_t end_run, std::size_t unit,
                               const SplitWeights* weights, const F32x16* correction, float* acc,
                               std::size_t acc_stride) {
    constexpr int kRuns = is_paired(Codes) ? 2 : 1;
    SplitSum sums[N][kRuns][U][kParts];
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h)
#pragma GCC unroll 2
        for (int r = 0; r < kRuns; ++r)
#pragma GCC unroll 4
            for (int u = 0; u < U; ++u)
#pragma GCC unroll 4
                for (int part = 0; part < kParts; ++part) sums[h][r][u][part] = split_zero();
    for (std::size_t run = first_run; run < end_run; ++run)
        for (std::size_t j = 0; j < 4; ++j) {
            const std::size_t key = 16 * run + 4 * j;
            if (v.next) prefetch(v.next + key * v.row_bytes, 4 * v.row_bytes);
            Words words[U][kParts];
            column_words(v.data + key * v.row_bytes + 16 * unit, v.row_bytes, words);
#pragma GCC unroll 4
            for (int u = 0; u < U; ++u)
#pragma GCC unroll 4
                for (int part = 0; part < kParts; ++part) {
                    const Words even = unsigned_codes<Codes, false>(words[u][part]);
                    [[maybe_unused]] const Words odd = unsigned_codes<Codes, true>(words[u][part]);
#pragma GCC unroll 4
                    for (int h = 0; h < N; ++h) {
                        const std::uint8_t* four = weights[h].numbers + run * kSplitBytes + 4 * j;
                        add_split(sums[h][0][u][part], even, four);
                        if constexpr (kRuns == 2) add_split(sums[h][1][u][part], odd, four);
                    }
                }
        }
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h)
#pragma GCC unroll 2
        for (int r = 0; r < kRuns; ++r) {
            I32x16 of_units[U];
#pragma GCC unroll 4
            for (int u = 0; u < U; ++u) of_units[u] = joined(sums[h][r][u]);
            if constexpr (U > 1) in_order(of_units);
#pragma GCC unroll 4
            for (int u = 0; u < U; ++u) {
                const std::size_t first =
                    16 * ((unit + static_cast<std::size_t>(u)) * kRuns + static_cast<std::size_t>(r));
                float* to = acc + static_cast<std::size_t>(h) * acc_stride + first;
                const F32x16 sum = to_float(of_units[u] - splat_int(weights[h].raised));
                store(to, fma(sum, splat(weights[h].factor), load(to) * correction[h]));
            }
        }
}

// Of the units [first, end), as many together as have their sums in registers.
template <KvCodes Codes, int N>
void add_units(TileRows v, std::size_t first_run, std::size_t end_run, std::size_t first, std::size_t end,
               const SplitWeights* weights, const F32x16* correction, float* acc, std::size_t acc_stride) {
    if constexpr (kColumnUnits > 1 && !is_paired(Codes)) {
        for (; first + kColumnUnits <= end; first += kColumnUnits) {
            constexpr int kTogether = N == 4 ? 2 : N;
            add_columns<Codes, kTogether, kColumnUnits>(v, first_run, end_run, first, weights, correction, acc,
                                                        acc_stride);
            v.next = nullptr;
            if constexpr (kTogether < N)
                add_columns<Codes, N - kTogether, kColumnUnits>(v, first_run, end_run, first, weights + kTogether,
                                                                correction + kTogether, acc + kTogether * acc_stride,
                                                                acc_stride);
        }
    }
    for (; first < end; ++first, v.next = nullptr)
        add_columns<Codes, N, 1>(v, first_run, end_run, first, weights, correction, acc, acc_stride);
}

struct UnitKernels {
    decltype(&dot_units<KvCodes::u8, 1>) dot[kHeadsAtOnce];
    decltype(&add_units<KvCodes::u8, 1>) add[kHeadsAtOnce];
    std::size_t dims;  // of a unit
};
template <KvCodes Codes>
const UnitKernels* unit_kernels_for() {
    constexpr std::size_t kDims = is_paired(Codes) ? 32 : 16;
    if constexpr (kHeadsAtOnce == 1) {
        static constexpr UnitKernels k{{dot_units<Codes, 1>}, {add_units<Codes, 1>}, kDims};
        return &k;
    } else {
        static constexpr UnitKernels k{
            {dot_units<Codes, 1>, dot_units<Codes, 2>, dot_units<Codes, 3>, dot_units<Codes, 4>},
            {add_units<Codes, 1>, add_units<Codes, 2>, add_units<Codes, 3>, add_units<Codes, 4>},
            kDims};
        return &k;
    }
}

// Null: of floats, or where sums could overflow or groups cut 16 keys or a unit.
const UnitKernels* unit_kernels(const KvView& view, std::size_t head_dim) {
    const std::size_t unit = is_paired(view.codes) ? 32 : 16;
    if (head_dim % unit != 0 || head_dim > kSplitDims) return nullptr;
    if (view.group == 0 ? view.group_tokens % 16 != 0 : view.group % unit != 0) return nullptr;
    switch (view.codes) {
        case KvCodes::i8:
            return unit_kernels_for<KvCodes::i8>();
        case KvCodes::u8:
            return unit_kernels_for<KvCodes::u8>();
        case KvCodes::i4:
            return unit_kernels_for<KvCodes::i4>();
        case KvCodes::u4:
            return unit_kernels_for<KvCodes::u4>();
        default:
            return nullptr;
    }
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
