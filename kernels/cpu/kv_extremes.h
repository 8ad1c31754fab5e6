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
bool column_extremes_of_words(const KvValues& x, std::size_t column, std::size_t n, float* mins, float* maxs,
                              RowsAhead& ahead, std::size_t lines) {
    I16x32 low[N], high[N];
    const Byte* p = row_of<T>(x, 0) + 2 * column;
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j)
        low[j] = high[j] = ordered<Magnitude>(n < kWords ? load_words(p, n) : load_i16(p + 2 * kWords * j));
    for (std::size_t row = 1; row < x.rows; ++row) {
        p = row_of<T>(x, row) + 2 * column;
        ahead.fetch(lines);
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) {
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
bool column_extremes(const KvValues& x, float* mins, float* maxs, RowsAhead& ahead, std::size_t lines) {
    bool finite = true;
    std::size_t i = 0;
    if constexpr (kParts == 1) {  // as many as there are registers for: memory is read in order
        for (; i + 8 * kWords <= x.n; i += 8 * kWords)
            finite &= column_extremes_of_words<T, Magnitude, 8>(x, i, 8 * kWords, mins, maxs, ahead, lines);
    }
    for (; i + 2 * kWords <= x.n; i += 2 * kWords)
        finite &= column_extremes_of_words<T, Magnitude, 2>(x, i, 2 * kWords, mins, maxs, ahead, lines);
    for (; i < x.n; i += kWords)
        finite &= column_extremes_of_words<T, Magnitude, 1>(x, i, smaller(x.n - i, kWords), mins, maxs, ahead, lines);
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

template <class T, bool Magnitude>
HETERO_INLINE bool column_extremes_as(const KvValues& x, float* mins, float* maxs, RowsAhead& ahead,
                                      std::size_t lines) {
    if constexpr (T::kBytes == 2)
        return column_extremes<T, Magnitude>(x, mins, maxs, ahead, lines);
    else
        return column_extremes_of_floats<Magnitude>(x, mins, maxs);
}

bool min_max_columns(const KvValues& x, float* mins, float* maxs) {
    return with_type(x.type, [&](auto type) {
        using T = decltype(type);
        const std::size_t row_bytes = x.n * T::kBytes;
        RowsAhead ahead(row_of<T>(x, 0) + kReadAhead, x.rows, x.stride * T::kBytes, row_bytes);
        const std::size_t lines = row_bytes / 64;
        return mins == nullptr ? column_extremes_as<T, true>(x, mins, maxs, ahead, lines)
                               : column_extremes_as<T, false>(x, mins, maxs, ahead, lines);
    });
}

// ---- scales

// The f16 after v, 0 <= v <= 65504: 0.6 units in its last place further, which is nearest to it, also where the unit
// changes.
HETERO_INLINE F32x16 next_f16(F32x16 v) { return round_to_f16(v + max(v, splat(0x1p-14F)) * splat(0.6F * 0x1p-10F)); }

// Scales (and zeros) of N times 16 groups, in steps, as each of them takes long. The nearest f16 is the wanted scale or
// the one before it, which an exact comparison tells, as a scale times the levels has 19 bits. A range is a difference
// and what f32 rounds off it, as much of that as binary64 would keep: more than the range's power of two times 2^-53.
template <bool Zero, std::size_t N>
HETERO_INLINE void some_scales(const F32x16 (&low)[N], const F32x16 (&high)[N], int levels, F32x16 (&scale)[N],
                               F32x16 (&zero_point)[N]) {
    const F32x16 inverse = splat(1 / static_cast<float>(levels)), exact_levels = splat(static_cast<float>(levels));
    F32x16 range[N], rest[N];
#pragma GCC unroll 4
    for (std::size_t j = 0; j < N; ++j) {
        range[j] = high[j];
        rest[j] = zero();
        if (Zero) {
            zero_point[j] = round_down_to_f16(low[j] + zero()) + zero();  // no zero with a sign
            range[j] = high[j] - zero_point[j];
        }
    }
#pragma GCC unroll 4
    for (std::size_t j = 0; j < N; ++j) scale[j] = round_to_f16(range[j] * inverse + zero());
#pragma GCC unroll 4
    for (std::size_t j = 0; Zero && j < N; ++j) {
        const F32x16 taken = range[j] - high[j];
        rest[j] = (high[j] - (range[j] - taken)) - (zero_point[j] + taken);
        rest[j] = where_less(power_of_two(range[j]) * splat(0x1p-53F), abs(rest[j]), rest[j], zero());
    }
#pragma GCC unroll 4
    for (std::size_t j = 0; j < N; ++j) {
        const F32x16 off = scale[j] * exact_levels - range[j];
        scale[j] = where_less(off, rest[j], next_f16(scale[j]), scale[j]);
    }
}

// Of n groups: the bits, and the numbers that they are, for which there is room up to a multiple of 16. False: some are
// infinite.
template <bool Zero>
HETERO_INLINE bool batch_scales(const float* mins, const float* maxs, std::size_t n, int levels,
                                std::uint16_t* scale_bits, float* scale, std::uint16_t* zero_bits, float* zero_point) {
    F32x16 largest = zero();
    std::size_t i = 0;
    const auto take = [&](auto vectors) __attribute__((always_inline)) {
        constexpr std::size_t count = decltype(vectors)::value;
        const bool whole = i + count * kLanes <= n;
        const auto put_some = [&](std::uint16_t * to, F32x16 v) __attribute__((always_inline)) {
            whole ? AsF16::put(reinterpret_cast<Byte*>(to), v) : put<AsF16>(reinterpret_cast<Byte*>(to), v, n - i);
        };
        F32x16 low[count], high[count], s[count], z[count];
#pragma GCC unroll 4
        for (std::size_t j = 0; j < count; ++j) {
            const std::size_t at = i + j * kLanes;
            low[j] = !Zero ? zero() : whole ? load(mins + at) : load(mins + at, n - at);
            high[j] = whole ? load(maxs + at) : load(maxs + at, n - at);
        }
        some_scales<Zero>(low, high, levels, s, z);
#pragma GCC unroll 4
        for (std::size_t j = 0; j < count; ++j) {
            const std::size_t at = i + j * kLanes;
            store(scale + at, s[j]);
            put_some(scale_bits + at, s[j]);
            largest = max_abs(largest, s[j]);
            if (!Zero) continue;
            store(zero_point + at, z[j]);
            put_some(zero_bits + at, z[j]);
            largest = max_abs(largest, z[j]);
        }
    };
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) take(Length<4>{});
    for (; i < n; i += kLanes) take(Length<1>{});
    return !any_greater(largest, splat(65504));
}

bool group_scales(const float* mins, const float* maxs, std::size_t n, int levels, std::uint16_t* scale,
                  std::uint16_t* zero_point) {
    bool finite = true;
    for (std::size_t first = 0; first < n; first += kBatch) {
        const std::size_t count = n - first < kBatch ? n - first : kBatch;
        float values[kBatch], zeros[kBatch];
        finite &= zero_point == nullptr
                      ? batch_scales<false>(nullptr, maxs + first, count, levels, scale + first, values, nullptr, zeros)
                      : batch_scales<true>(mins + first, maxs + first, count, levels, scale + first, values,
                                           zero_point + first, zeros);
    }
    return finite;
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
