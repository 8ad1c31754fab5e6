// Extremes of the rows and columns of a block of the KV state, and the scales of groups that have them, exactly the
// scalar operations (ref/kv_blocks.cpp). Included by generic.h after kv_values.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

constexpr std::size_t kWords = 32, kBatch = 64;

// Rows whose values are looked at twice, for their extremes and for their codes, come in batches that stay in the cache
// next to the core; what is two batches further is fetched into it meanwhile.
constexpr std::size_t kBatchBytes = 8192;
HETERO_INLINE std::size_t batch_rows(std::size_t row_bytes) {
    const std::size_t rows = kBatchBytes / row_bytes / kLanes * kLanes;
    return rows < kLanes ? kLanes : rows > kBatch ? kBatch : rows;
}

// 16-bit floats with a sign: as integers they have the order of their values once the negative ones are reversed.
HETERO_INLINE I16x32 load_words(const Byte* p, std::size_t n) {  // 1 <= n < 32; the last one stands for those missing
    std::uint16_t words[kWords];
    std::memcpy(words, p, 2 * n);
    for (std::size_t i = n; i < kWords; ++i) words[i] = words[n - 1];
    return load_i16(words);
}
template <bool Magnitude>
HETERO_INLINE I16x32 ordered(I16x32 v) {
    return Magnitude ? without_sign(v) : negative_reversed(v);
}
template <bool Largest>
HETERO_INLINE I16x32 extreme(I16x32 a, I16x32 b) {
    return Largest ? max(a, b) : min(a, b);
}

// The extreme word of each of 16 vectors, in order. Words of two vectors are put side by side and the better of two is
// kept, then pairs of words, then fours; what is left are lanes. `all`: the extreme of all so far.
template <bool Largest>
HETERO_INLINE void store_extremes(I16x32 (&v)[16], std::uint16_t* out, I16x32& all) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
        v[i] = extreme<Largest>(zip_low<1>(v[2 * i], v[2 * i + 1]), zip_high<1>(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        v[i] = extreme<Largest>(zip_low<2>(v[2 * i], v[2 * i + 1]), zip_high<2>(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        I16x32 eight = extreme<Largest>(zip_low<4>(v[2 * i], v[2 * i + 1]), zip_high<4>(v[2 * i], v[2 * i + 1]));
        eight = extreme<Largest>(eight, rotate_lanes<2>(eight));
        eight = extreme<Largest>(eight, rotate_lanes<1>(eight));
        all = extreme<Largest>(all, eight);
        store_first_lane(out + 8 * i, negative_reversed(eight));
    }
}

// Extremes of at most kBatch rows at a time.
template <class T, bool Magnitude>
struct RowExtremes {
    I16x32 lowest = splat_i16(0), highest = splat_i16(0);  // of all rows so far
    alignas(64) std::uint16_t low[kBatch], high[kBatch];

    HETERO_INLINE void find(const KvValues& x, std::size_t first, std::size_t rows) {
        const std::size_t step = x.stride * T::kBytes;
        for (std::size_t at = 0; at < rows; at += kLanes) {
            I16x32 most[kLanes], least[kLanes];
            const Byte* p = row_of<T>(x, first + at);
#pragma GCC unroll 16
            for (std::size_t r = 0; r < kLanes;
                 ++r, p += at + r < rows ? step : 0) {  // the last stands for those missing
                const std::size_t head = x.n % kWords;  // what is no whole vector comes first
                I16x32 a = ordered<Magnitude>(head != 0 ? load_words(p, head) : load_i16(p)), b = a;
                for (std::size_t i = head != 0 ? head : kWords; i < x.n; i += kWords) {
                    const I16x32 v = ordered<Magnitude>(load_i16(p + 2 * i));
                    if (!Magnitude) a = min(a, v);
                    b = max(b, v);
                }
                least[r] = a;
                most[r] = b;
            }
            store_extremes<true>(most, high + at, highest);
            if (!Magnitude) store_extremes<false>(least, low + at, lowest);
        }
    }
    HETERO_INLINE void give(float* mins, float* maxs, std::size_t rows) const {
        T::widen(high, maxs, rows);
        if (!Magnitude) T::widen(low, mins, rows);
    }
    [[nodiscard]] HETERO_INLINE bool finite() const {
        return largest_word(highest) < T::kInfinity && (Magnitude || smallest_word(lowest) >= -T::kInfinity);
    }
};

template <bool Magnitude>
struct RowExtremes<AsF32, Magnitude> {
    F32x16 poison = zero();  // 0 * x is NaN for infinities and NaN
    float low[kBatch], high[kBatch];

    HETERO_INLINE void find(const KvValues& x, std::size_t begin, std::size_t rows) {
        for (std::size_t row = 0; row < rows; ++row) {
            const auto* p = reinterpret_cast<const float*>(row_of<AsF32>(x, begin + row));
            const F32x16 first = splat(p[0]);
            F32x16 least = first, most = first;
            for (std::size_t i = 0; i < x.n; i += kLanes) {
                const std::size_t left = x.n - i;
                const F32x16 v = left >= kLanes ? load(p + i) : where_between(0, left, load(p + i, left), first);
                poison = fma(v, zero(), poison);
                if (!Magnitude) least = min(least, v);
                most = Magnitude ? max_abs(most, v) : max(most, v);
            }
            if (!Magnitude) low[row] = min_lane(least);
            high[row] = max_lane(most);
        }
    }
    HETERO_INLINE void give(float* mins, float* maxs, std::size_t rows) const {
        std::memcpy(maxs, high, rows * sizeof high[0]);
        if (!Magnitude) std::memcpy(mins, low, rows * sizeof low[0]);
    }
    [[nodiscard]] HETERO_INLINE bool finite() const { return sum(poison) == 0; }
};

template <class T, bool Magnitude>
HETERO_INLINE bool row_extremes(const KvValues& x, float* mins, float* maxs) {
    RowExtremes<T, Magnitude> found;
    for (std::size_t first = 0; first < x.rows; first += kBatch) {
        const std::size_t rows = x.rows - first < kBatch ? x.rows - first : kBatch;
        found.find(x, first, rows);
        found.give(Magnitude ? nullptr : mins + first, maxs + first, rows);
    }
    return found.finite();
}

bool min_max_rows(const KvValues& x, float* mins, float* maxs) {
    if (x.n == 0) return ref::min_max_rows(x, mins, maxs);
    return with_type(x.type, [&](auto type) {
        using T = decltype(type);
        return mins == nullptr ? row_extremes<T, true>(x, mins, maxs) : row_extremes<T, false>(x, mins, maxs);
    });
}

// Columns of 16-bit floats, N times 32 side by side.
template <class T, bool Magnitude, int N>
bool column_extremes_of_words(const KvValues& x, std::size_t column, std::size_t n, float* mins, float* maxs) {
    I16x32 low[N], high[N];
    const Byte* p = row_of<T>(x, 0) + 2 * column;
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j)
        low[j] = high[j] = ordered<Magnitude>(n < kWords ? load_words(p, n) : load_i16(p + 2 * kWords * j));
    for (std::size_t row = 1; row < x.rows; ++row) {
        p = row_of<T>(x, row) + 2 * column;
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) {
            prefetch(p + 2 * kWords * j);
            const I16x32 v = ordered<Magnitude>(n < kWords ? load_words(p, n) : load_i16(p + 2 * kWords * j));
            if (!Magnitude) low[j] = min(low[j], v);
            high[j] = max(high[j], v);
        }
    }
    I16x32 lowest = splat_i16(0), highest = lowest;
    const auto give = [&](const I16x32(&from)[N], float* to) {
        std::uint16_t words[N * kWords];
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) store_i16(words + kWords * j, negative_reversed(from[j]));
        for (std::size_t i = 0; i < n; i += kLanes) {
            const F32x16 v = T::get(reinterpret_cast<const Byte*>(words + i));
            n - i < kLanes ? store(to + i, v, n - i) : store(to + i, v);
        }
    };
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
        highest = max(highest, high[j]);
        lowest = min(lowest, low[j]);
    }
    give(high, maxs + column);
    if (!Magnitude) give(low, mins + column);
    return largest_word(highest) < T::kInfinity && smallest_word(lowest) >= -T::kInfinity;
}

template <class T, bool Magnitude>
bool column_extremes(const KvValues& x, float* mins, float* maxs) {
    bool finite = true;
    std::size_t i = 0;
    if constexpr (kParts == 1) {  // as many as there are registers for: memory is read in order
        for (; i + 8 * kWords <= x.n; i += 8 * kWords)
            finite &= column_extremes_of_words<T, Magnitude, 8>(x, i, 8 * kWords, mins, maxs);
    }
    for (; i + 2 * kWords <= x.n; i += 2 * kWords)
        finite &= column_extremes_of_words<T, Magnitude, 2>(x, i, 2 * kWords, mins, maxs);
    for (; i < x.n; i += kWords)
        finite &= column_extremes_of_words<T, Magnitude, 1>(x, i, x.n - i < kWords ? x.n - i : kWords, mins, maxs);
    return finite;
}

template <bool Magnitude>
bool column_extremes_of_floats(const KvValues& x, float* mins, float* maxs) {
    F32x16 poison = zero();
    for (std::size_t i = 0; i < x.n; i += kLanes) {
        const std::size_t left = x.n - i;
        F32x16 low = zero(), high = zero();
        for (std::size_t row = 0; row < x.rows; ++row) {
            const auto* p = reinterpret_cast<const float*>(row_of<AsF32>(x, row)) + i;
            F32x16 v = left >= kLanes ? load(p) : load(p, left);
            poison = fma(v, zero(), poison);
            if (Magnitude) v = abs(v);
            low = row == 0 ? v : min(low, v);
            high = row == 0 ? v : max(high, v);
        }
        if (!Magnitude) put<AsF32>(reinterpret_cast<Byte*>(mins + i), low, left < kLanes ? left : kLanes);
        put<AsF32>(reinterpret_cast<Byte*>(maxs + i), high, left < kLanes ? left : kLanes);
    }
    return sum(poison) == 0;
}

bool min_max_columns(const KvValues& x, float* mins, float* maxs) {
    switch (x.type) {
        case DType::f16:
            return mins == nullptr ? column_extremes<AsF16, true>(x, mins, maxs)
                                   : column_extremes<AsF16, false>(x, mins, maxs);
        case DType::bf16:
            return mins == nullptr ? column_extremes<AsBf16, true>(x, mins, maxs)
                                   : column_extremes<AsBf16, false>(x, mins, maxs);
        default:
            return mins == nullptr ? column_extremes_of_floats<true>(x, mins, maxs)
                                   : column_extremes_of_floats<false>(x, mins, maxs);
    }
}

// ---- scales

// The nearest f16 is the wanted one or its neighbour, which an exact comparison tells: a scale has 11 bits.
// n <= kBatch groups; the bits, and the numbers that they are. False: some are infinite.
template <bool Zero>
HETERO_INLINE bool batch_scales(const float* mins, const float* maxs, std::size_t n, int levels,
                                std::uint16_t* scale_bits, float* scale, std::uint16_t* zero_bits, float* zero_point) {
    const float inverse = 1 / static_cast<float>(levels);
    using Range = std::conditional_t<Zero, double, float>;  // a largest magnitude is an f32, a difference is not
    const auto exact_levels = static_cast<Range>(levels);
    F32x16 largest = zero();
    alignas(64) Range ranges[kBatch];
    const Range* range = ranges;
    const std::size_t padded = (n + kLanes - 1) / kLanes * kLanes;
    const auto round_all = [&](const float* from, std::uint16_t* bits, float* value) {
        for (std::size_t i = 0; i < padded; i += kLanes) {
            store_f16(bits + i, load(from + i));
            store(value + i, load_f16(bits + i));
        }
    };
    if (Zero) {
        round_all(mins, zero_bits, zero_point);
        for (std::size_t i = 0; i < padded; ++i) {
            const std::uint32_t above = zero_point[i] > mins[i] ? 1 : 0, negative = zero_bits[i] >> 15;
            const std::uint32_t lower = zero_bits[i] - above + 2 * (above & negative);
            zero_bits[i] = static_cast<std::uint16_t>(lower == 0x8000 ? 0 : lower);
        }
        for (std::size_t i = 0; i < padded; i += kLanes) {
            const F32x16 found = load_f16(zero_bits + i);
            store(zero_point + i, found);
            largest = max_abs(largest, found);
        }
        for (std::size_t i = 0; i < padded; ++i) ranges[i] = static_cast<Range>(maxs[i]) - zero_point[i];
    }
    if constexpr (!Zero) range = maxs;
    for (std::size_t i = 0; i < padded; ++i) scale[i] = static_cast<float>(range[i]) * inverse + 0.0F;
    round_all(scale, scale_bits, scale);
    for (std::size_t i = 0; i < padded; ++i) {
        const std::uint32_t below = static_cast<Range>(scale[i]) * exact_levels < range[i] ? 1 : 0;
        scale_bits[i] = static_cast<std::uint16_t>(scale_bits[i] + below);
    }
    for (std::size_t i = 0; i < padded; i += kLanes) {
        const F32x16 found = load_f16(scale_bits + i);
        store(scale + i, found);
        largest = max_abs(largest, found);
    }
    return !any_greater(largest, splat(65504));
}

bool group_scales(const float* mins, const float* maxs, std::size_t n, int levels, std::uint16_t* scale,
                  std::uint16_t* zero_point) {
    bool finite = true;
    for (std::size_t first = 0; first < n; first += kBatch) {
        const std::size_t count = n - first < kBatch ? n - first : kBatch;
        float low[kBatch] = {}, high[kBatch] = {}, value[kBatch];
        std::uint16_t scale_bits[kBatch], zero_bits[kBatch];
        std::memcpy(high, maxs + first, count * sizeof high[0]);
        if (zero_point == nullptr) {
            finite &= batch_scales<false>(low, high, count, levels, scale_bits, value, nullptr, nullptr);
        } else {
            float zeros[kBatch];
            std::memcpy(low, mins + first, count * sizeof low[0]);
            finite &= batch_scales<true>(low, high, count, levels, scale_bits, value, zero_bits, zeros);
            std::memcpy(zero_point + first, zero_bits, count * sizeof zero_bits[0]);
        }
        std::memcpy(scale + first, scale_bits, count * sizeof scale_bits[0]);
    }
    return finite;
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
