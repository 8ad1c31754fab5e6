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

HETERO_INLINE void fetch(ByteRange bytes) { prefetch(bytes.begin, static_cast<std::size_t>(bytes.end - bytes.begin)); }
// The i-th of n parts that are equal but for a cache line.
HETERO_INLINE ByteRange part_of(ByteRange bytes, std::size_t i, std::size_t n) {
    const std::size_t lines = (static_cast<std::size_t>(bytes.end - bytes.begin) + 63) / 64;
    return {bytes.begin + lines * i / n * 64, i + 1 == n ? bytes.end : bytes.begin + lines * (i + 1) / n * 64};
}

// Bytes to be fetched in equal steps while something else is computed: a burst of them holds up the loads behind it.
class BytesAhead {
public:
    BytesAhead(ByteRange bytes, std::size_t steps)
        : at_(bytes.begin),
          step_((static_cast<std::size_t>(bytes.end - bytes.begin) + 64 * steps - 1) / (64 * steps)) {}
    HETERO_INLINE void fetch() {
        for (std::size_t i = 0; i < step_; ++i, at_ += 64) __builtin_prefetch(at_);
    }

private:
    const std::uint8_t* at_;
    std::size_t step_;  // lines
};

constexpr std::size_t kKeyRuns = kParts == 1 ? 2 : 1;  // of 16 keys, whose sums fit the registers together

// dots[run][head][key] of kKeyRuns runs of 16 keys and `units` units of N queries, `q` in the order of runs. What
// raised codes add is in the totals of splits[head * kMostGroups].
template <KvCodes Codes, int N>
HETERO_INLINE void dot_units(const std::uint8_t* rows, std::size_t row_bytes, std::size_t units, const std::uint8_t* q,
                             std::size_t q_bytes, const Split* splits, BytesAhead& ahead, I32x16 (&dots)[kKeyRuns][N]) {
    constexpr std::size_t kRuns = is_paired(Codes) ? 2 : 1;
    SplitSum sums[kKeyRuns][N][kParts];
#pragma GCC unroll 2
    for (std::size_t run = 0; run < kKeyRuns; ++run)
#pragma GCC unroll 4
        for (std::size_t h = 0; h < N; ++h)
#pragma GCC unroll 4
            for (int part = 0; part < kParts; ++part) sums[run][h][part] = split_from(-splits[h * kMostGroups].total);
    for (std::size_t unit = 0; unit < units; ++unit, rows += 16, q += kRuns * kSplitBytes) {
        ahead.fetch();
        Words words[kKeyRuns][4][kParts];
#pragma GCC unroll 2
        for (std::size_t run = 0; run < kKeyRuns; ++run) row_words(rows + 16 * run * row_bytes, row_bytes, words[run]);
#pragma GCC unroll 4
        for (std::size_t j = 0; j < 4; ++j) {
#pragma GCC unroll 2
            for (std::size_t run = 0; run < kKeyRuns; ++run)
#pragma GCC unroll 4
                for (int part = 0; part < kParts; ++part) {
                    const Words even = unsigned_codes<Codes, false>(words[run][j][part]);
                    [[maybe_unused]] const Words odd = unsigned_codes<Codes, true>(words[run][j][part]);
#pragma GCC unroll 4
                    for (std::size_t h = 0; h < N; ++h) {
                        const std::uint8_t* four = q + h * q_bytes + 4 * j;
                        add_split(sums[run][h][part], even, four);
                        if constexpr (kRuns == 2) add_split(sums[run][h][part], odd, four + kSplitBytes);
                    }
                }
        }
    }
#pragma GCC unroll 2
    for (std::size_t run = 0; run < kKeyRuns; ++run)
#pragma GCC unroll 4
        for (int h = 0; h < N; ++h) dots[run][h] = joined(sums[run][h]);
}

// Those of 16 keys from i on, of which [begin, end) are wanted; others may have theirs already.
template <std::size_t N>
HETERO_INLINE void store_scores(std::size_t i, std::size_t begin, std::size_t end, const F32x16 (&values)[N],
                                float* scores) {
    if (i + 16 <= begin || i >= end) return;
    const std::size_t from = i < begin ? begin - i : 0, to = smaller(16, end - i);
#pragma GCC unroll 4
    for (std::size_t h = 0; h < N; ++h) {
        float* score = scores + h * kBlockKeys + i;
        store(score, from == 0 && to == 16 ? values[h] : where_between(from, to, values[h], load(score)));
    }
}

// Keys [begin, end) of a tile and what their scores are made of.
struct KeyCodes {
    const std::uint8_t* rows;  // the tile
    std::size_t row_bytes, begin, end;
    std::size_t groups, units;            // of a row, and of a group
    const std::uint16_t *scales, *zeros;  // [group][key of the tile], or null: 1 and 0
    const std::uint8_t* q;                // [head][dim], in the order of runs, split
    std::size_t q_bytes;                  // from head to head
    const Split (*splits)[kMostGroups];   // [head][group]
    const float (*q_sums)[kMostGroups];   // [head][group], of the dims; with zeros only
    const float* added;                   // [head]
    float* scores;                        // [head][key of the block], from the tile's first key on
    ByteRange ahead;
};

template <KvCodes Codes, int N>
HETERO_INLINE void score_rows(const KeyCodes& k, std::size_t row_bytes) {
    constexpr std::size_t kTogether = 16 * kKeyRuns, kRuns = is_paired(Codes) ? 2 : 1;
    const std::size_t first = k.begin / kTogether * kTogether;
    BytesAhead ahead(k.ahead, (k.end - first + kTogether - 1) / kTogether * k.groups * k.units);
    for (std::size_t i = first; i < k.end; i += kTogether) {
        F32x16 values[kKeyRuns][N];
#pragma GCC unroll 2
        for (auto& of_run : values)
#pragma GCC unroll 4
            for (std::size_t h = 0; h < N; ++h) of_run[h] = splat(k.added[h]);
        for (std::size_t g = 0; g < k.groups; ++g) {
            I32x16 dots[kKeyRuns][N];
            dot_units<Codes, N>(k.rows + i * row_bytes + 16 * g * k.units, row_bytes, k.units,
                                k.q + g * k.units * kRuns * kSplitBytes, k.q_bytes, &k.splits[0][g], ahead, dots);
#pragma GCC unroll 2
            for (std::size_t run = 0; run < kKeyRuns; ++run) {
                const std::size_t key = g * kTileKeys + i + 16 * run;
                const F32x16 scale = k.scales ? load_f16(k.scales + key) : splat(1.0F);
                const F32x16 low = k.zeros ? load_f16(k.zeros + key) : zero();
#pragma GCC unroll 4
                for (std::size_t h = 0; h < N; ++h) {
                    values[run][h] = fma(to_float(dots[run][h]), scale * splat(k.splits[h][g].factor), values[run][h]);
                    if (k.zeros) values[run][h] = fma(low, splat(k.q_sums[h][g]), values[run][h]);
                }
            }
        }
#pragma GCC unroll 2
        for (std::size_t run = 0; run < kKeyRuns; ++run)
            store_scores<N>(i + 16 * run, k.begin, k.end, values[run], k.scores);
    }
}

template <KvCodes Codes, int N>
void score_codes(const KeyCodes& k) {
    constexpr std::size_t kUsual = is_paired(Codes) ? 32 : 64;  // constant strides need no registers
    if (k.row_bytes == kUsual) return score_rows<Codes, N>(k, kUsual);
    if (k.row_bytes == 2 * kUsual) return score_rows<Codes, N>(k, 2 * kUsual);
    score_rows<Codes, N>(k, k.row_bytes);
}

// Of one head and a group: the weights of a tile's keys, and what is to be taken off the sums of raised codes.
struct SplitWeights {
    const std::uint8_t* numbers;
    float factor;
    int raised;
};
struct ValueTile {
    const std::uint8_t* rows;
    std::size_t first_run, end_run;  // of 16 keys
    SplitWeights weights[kMostGroups][kHeadsAtOnce];
    ByteRange ahead;
};
struct ValueCodes {
    const ValueTile* tiles;
    std::size_t n_tiles, row_bytes;
    std::size_t groups, units;  // of a row, and of a group
    const F32x16* correction;   // [head]
    float* acc;                 // [head][dim], in the order of runs
    std::size_t acc_stride;
};

// acc[head] = acc[head] * correction[head] + the sum of weights * values of all tiles, U units from `unit` on, which
// lie in a group. Fetches a share of what lies ahead.
template <KvCodes Codes, int N, int U>
HETERO_INLINE void add_columns(const ValueCodes& v, std::size_t row_bytes, std::size_t unit, std::size_t first_head,
                               std::size_t share, std::size_t shares) {
    constexpr int kRuns = is_paired(Codes) ? 2 : 1;
    const std::size_t g = unit / v.units;
    float* acc = v.acc + first_head * v.acc_stride + 16 * unit * kRuns;
    F32x16 total[N][kRuns][U];
#pragma GCC unroll 4
    for (std::size_t h = 0; h < N; ++h)
#pragma GCC unroll 2
        for (std::size_t r = 0; r < kRuns; ++r)
#pragma GCC unroll 4
            for (std::size_t u = 0; u < U; ++u)
                total[h][r][u] = load(acc + h * v.acc_stride + 16 * (u * kRuns + r)) * v.correction[first_head + h];
    for (std::size_t t = 0; t < v.n_tiles; ++t) {
        const ValueTile& tile = v.tiles[t];
        const SplitWeights* weights = &tile.weights[g][first_head];
        BytesAhead ahead(part_of(tile.ahead, share, shares), tile.end_run - tile.first_run);
        SplitSum sums[N][kRuns][U][kParts];
#pragma GCC unroll 4
        for (int h = 0; h < N; ++h)
#pragma GCC unroll 2
            for (int r = 0; r < kRuns; ++r)
#pragma GCC unroll 4
                for (int u = 0; u < U; ++u)
#pragma GCC unroll 4
                    for (int part = 0; part < kParts; ++part) sums[h][r][u][part] = split_from(-weights[h].raised);
        for (std::size_t run = tile.first_run; run < tile.end_run; ++run)
#pragma GCC unroll 4
            for (std::size_t j = 0; j < 4; ++j) {
                if (j == 0) ahead.fetch();
                Words words[U][kParts];
                column_words(tile.rows + (16 * run + 4 * j) * row_bytes + 16 * unit, row_bytes, words);
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
                for (int u = 0; u < U; ++u)
                    total[h][r][u] = fma(to_float(of_units[u]), splat(weights[h].factor), total[h][r][u]);
            }
    }
#pragma GCC unroll 4
    for (std::size_t h = 0; h < N; ++h)
#pragma GCC unroll 2
        for (std::size_t r = 0; r < kRuns; ++r)
#pragma GCC unroll 4
            for (std::size_t u = 0; u < U; ++u) store(acc + h * v.acc_stride + 16 * (u * kRuns + r), total[h][r][u]);
}

// As many units together as have their sums in registers.
template <KvCodes Codes, int N>
HETERO_INLINE void add_rows_of(const ValueCodes& v, std::size_t row_bytes) {
    const std::size_t units = v.groups * v.units;
    std::size_t unit = 0;
    if constexpr (kColumnUnits > 1 && !is_paired(Codes)) {
        if (v.units % kColumnUnits == 0)
            for (; unit < units; unit += kColumnUnits) {
                constexpr int kTogether = N == 4 ? 2 : N;
                constexpr std::size_t kTimes = N / kTogether;
                const std::size_t at = unit / kColumnUnits * kTimes, all = units / kColumnUnits * kTimes;
                add_columns<Codes, kTogether, kColumnUnits>(v, row_bytes, unit, 0, at, all);
                if constexpr (kTimes == 2)
                    add_columns<Codes, kTogether, kColumnUnits>(v, row_bytes, unit, kTogether, at + 1, all);
            }
    }
    for (; unit < units; ++unit) add_columns<Codes, N, 1>(v, row_bytes, unit, 0, unit, units);
}

template <KvCodes Codes, int N>
void add_codes(const ValueCodes& v) {
    constexpr std::size_t kUsual = is_paired(Codes) ? 32 : 64;
    if (v.row_bytes == kUsual) return add_rows_of<Codes, N>(v, kUsual);
    add_rows_of<Codes, N>(v, v.row_bytes);
}

struct UnitKernels {
    decltype(&score_codes<KvCodes::u8, 1>) score[kHeadsAtOnce];
    decltype(&add_codes<KvCodes::u8, 1>) add[kHeadsAtOnce];
    std::size_t dims;  // of a unit
};
template <KvCodes Codes>
const UnitKernels* unit_kernels_for() {
    constexpr std::size_t kDims = is_paired(Codes) ? 32 : 16;
    if constexpr (kHeadsAtOnce == 1) {
        static constexpr UnitKernels k{{score_codes<Codes, 1>}, {add_codes<Codes, 1>}, kDims};
        return &k;
    } else {
        static constexpr UnitKernels k{
            {score_codes<Codes, 1>, score_codes<Codes, 2>, score_codes<Codes, 3>, score_codes<Codes, 4>},
            {add_codes<Codes, 1>, add_codes<Codes, 2>, add_codes<Codes, 3>, add_codes<Codes, 4>},
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
