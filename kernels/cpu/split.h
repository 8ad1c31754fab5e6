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
HETERO_INLINE SplitSum split_zero() { return {{words_splat(0), words_splat(0)}}; }
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

// n values, a multiple of 16, to the nearest multiples of a factor: the largest magnitude / kLargestSplit, NaN where a
// value is not finite. `total`: the sum of the multiples.
struct Split {
    float factor;
    int total;
};
HETERO_INLINE Split split(const float* x, std::size_t n, std::uint8_t* out) {
    F32x16 top = zero(), poison = zero(), total = zero();
    for (std::size_t i = 0; i < n; i += 16) {
        const F32x16 v = load(x + i);
        top = max_abs(v, top);
        poison = poison + (v - v);
    }
    const bool finite = sum(poison) == 0;
    const float largest = finite ? max_lane(top) : 0;
    const F32x16 inverse = splat(split_inverse(largest)), nothing = zero();
    for (std::size_t i = 0; i < n; i += 16) {
        const I32x16 numbers = round_to_int(finite ? load(x + i) * inverse : nothing);
        store_split(out + 2 * i, numbers);
        total = total + to_float(numbers);  // below 2^24: exact
    }
    return {finite ? split_factor(largest) : __builtin_nanf(""), static_cast<int>(sum(total))};
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
