// Exact dots of codes of 4 or 8 bits and numbers of 16 bits, in 32-bit lanes. Where there are dots of bytes, a number
// is 256 * high + low, and codes meet the two apart. Included after vec_*.h and dot_*.h, once per instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

constexpr bool kByteDots = kWideZero == 0;
constexpr int kLargestSplit = 127 * 256 + 127;  // of the numbers' magnitudes
constexpr std::size_t kSplitDims = 256;         // 256 products of it and a code stay within 31 bits
constexpr std::size_t kSplitBytes = 32;         // of 16 numbers: two parts of the j-th four, at 4 j and 16 + 4 j
constexpr float kLeastSplit = 0x1p-100F;        // values that are all smaller become zeros

HETERO_INLINE Words splat_word(const std::uint8_t* p) {
    std::int32_t word;
    std::memcpy(&word, p, sizeof word);
    return words_splat(word);
}

HETERO_INLINE void store_split(std::uint8_t* p, I32x16 numbers) {
    if constexpr (kByteDots) {  // high and low, from -128 to 127 each
        bytes_store(p, narrow(shift_right_signed<8>(numbers + splat_int(128))));
        bytes_store(p + 16, narrow(numbers));
    } else {  // even and odd ones
        std::int32_t all[kLanes];
        std::int16_t parts[2][kLanes / 2];
        std::memcpy(all, &numbers, sizeof all);
        for (std::size_t i = 0; i < kLanes; ++i) parts[i % 2][i / 2] = static_cast<std::int16_t>(all[i]);
        std::memcpy(p, parts, sizeof parts);
    }
}

// The sums of one lane of codes, four in each lane, with the same four numbers; its parts are added at the end.
struct SplitSum {
    Words part[2];
};
HETERO_INLINE SplitSum split_from(int first) { return {{words_splat(0), words_splat(first)}}; }
HETERO_INLINE void add_split(SplitSum& sum, Words codes, const std::uint8_t* four) {
    if constexpr (kByteDots) {
        add_dot(sum.part[0], codes, splat_word(four));
        add_dot(sum.part[1], codes, splat_word(four + 16));
    } else {
        sum.part[0] = dot_halves(sum.part[0], even_bytes(codes), splat_word(four));
        sum.part[1] = dot_halves(sum.part[1], odd_bytes(codes), splat_word(four + 16));
    }
}
HETERO_INLINE I32x16 joined(const SplitSum (&sums)[kParts]) {
    I32x16 out;
    for (int part = 0; part < kParts; ++part) {
        const auto& [high, low] = sums[part].part;
        out.part[part] = words_add(kByteDots ? words_shift_left_8(high) : high, low);
    }
    return out;
}

HETERO_INLINE float split_inverse(float largest) { return largest < kLeastSplit ? 0 : kLargestSplit / largest; }
HETERO_INLINE float split_factor(float largest) { return largest < kLeastSplit ? 0 : largest / kLargestSplit; }

// Four times 16 numbers, one after the other.
HETERO_INLINE void store_splits(std::uint8_t* p, const I32x16 (&numbers)[4]) {
#ifdef __AVX512VNNI__
    store_high_and_low(p, numbers);
#else
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) store_split(p + kSplitBytes * i, numbers[i]);
#endif
}

// Of N rows of n values, a multiple of 16, x[row * stride + i], each to the nearest multiples of a factor: the largest
// magnitude / kLargestSplit, NaN where a value of the row is not finite. `total`: the sum of the multiples, or 0 unless
// `totals`. Step by step for all rows: they do not wait for one another.
struct Split {
    float factor;
    int total;
};
template <std::size_t N>
HETERO_INLINE void split(const float* x, std::size_t stride, std::size_t n, std::uint8_t* out, std::size_t out_stride,
                         bool totals, Split (&splits)[N]) {
    F32x16 top[N], poison[N], inverse[N];
    const auto each = [](auto step) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (std::size_t row = 0; row < N; ++row) step(row);
    };
    each([&](std::size_t row) { top[row] = poison[row] = zero(); });
    for (std::size_t i = 0; i < n; i += 16)
        each([&](std::size_t row) {
            const F32x16 v = load(x + row * stride + i);
            top[row] = max_abs(v, top[row]);
            poison[row] = fma(v, zero(), poison[row]);
        });
    each([&](std::size_t row) {
        const bool finite = !any_greater(where_less(poison[row], splat(1), zero(), splat(1)), zero());
        const float largest = finite ? max_lane(top[row]) : 0;
        inverse[row] = splat(split_inverse(largest));
        splits[row] = {finite ? split_factor(largest) : __builtin_nanf(""), 0};
    });
    std::size_t i = 0;
    const auto numbers_at = [&](std::size_t row, std::size_t at) __attribute__((always_inline)) {
        return round_to_int(load(x + row * stride + at) * inverse[row]);
    };
    for (; i + 64 <= n; i += 64)
        each([&](std::size_t row) {
            const I32x16 numbers[4] = {numbers_at(row, i), numbers_at(row, i + 16), numbers_at(row, i + 32),
                                       numbers_at(row, i + 48)};
            store_splits(out + row * out_stride + 2 * i, numbers);
        });
    for (; i < n; i += 16)
        each([&](std::size_t row) { store_split(out + row * out_stride + 2 * i, numbers_at(row, i)); });
    if (!totals) return;
    each([&](std::size_t row) {
        F32x16 total = zero();
        for (std::size_t at = 0; at < n; at += 16) total = total + to_float(numbers_at(row, at));  // exact
        if (splits[row].factor == splits[row].factor) splits[row].total = static_cast<int>(sum(total));
    });
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
