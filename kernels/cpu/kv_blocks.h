// Blocks of the KV state to codes and back, exactly the scalar operations (ref/kv_blocks.cpp). Values are widened as
// they are loaded and codes packed as they are stored, so that a block crosses memory once. Included by generic.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

struct Yes {
    static constexpr bool value = true;
};
struct No {
    static constexpr bool value = false;
};

// 2^(e - bits) of a normal x = 1.m * 2^e: half a unit in the last of `bits` places.
HETERO_INLINE float half_unit(float x, int bits) {
    std::uint32_t word = 0;
    std::memcpy(&word, &x, 4);
    word = (word & 0x7F800000U) - (static_cast<std::uint32_t>(bits) << 23);
    std::memcpy(&x, &word, 4);
    return x;
}

// How a type lies in memory. beyond: the smallest magnitude that it rounds to infinity.
struct AsF32 {
    static HETERO_INLINE float rounded_away(float) { return 0; }
    static constexpr std::size_t kBytes = 4;
    static constexpr float kBeyond = __builtin_huge_valf();
    static HETERO_INLINE F32x16 get(const Byte* p) { return load(reinterpret_cast<const float*>(p)); }
    static HETERO_INLINE void put(Byte* p, F32x16 v) { store(reinterpret_cast<float*>(p), v); }
};
struct AsF16 {
    // The most that rounding a magnitude up to `largest` takes away.
    static HETERO_INLINE float rounded_away(float largest) {
        return half_unit(largest < 0x1p-14F ? 0x1p-14F : largest, 11);
    }
    static constexpr std::size_t kBytes = 2;
    static constexpr int kInfinity = 0x7C00;
    static constexpr float kBeyond = 65520;
    static HETERO_INLINE F32x16 get(const Byte* p) { return load_f16(p); }
    static HETERO_INLINE void put(Byte* p, F32x16 v) { store_f16(p, v); }
    static void widen(const std::uint16_t* bits, float* x, std::size_t n) { f16_to_f32(bits, x, n); }
};
struct AsBf16 {
    static HETERO_INLINE float rounded_away(float largest) {
        return half_unit(largest < 0x1p-100F ? 0x1p-100F : largest, 8);
    }
    static constexpr std::size_t kBytes = 2;
    static constexpr int kInfinity = 0x7F80;
    static constexpr float kBeyond = 0x1.FFp127F;
    static HETERO_INLINE F32x16 get(const Byte* p) { return load_bf16(p); }
    static HETERO_INLINE void put(Byte* p, F32x16 v) { store_bf16(p, v); }
    static void widen(const std::uint16_t* bits, float* x, std::size_t n) { bf16_to_f32(bits, x, n); }
};

template <class T>
HETERO_INLINE F32x16 get(const Byte* p, std::size_t n) {  // n < 16, the others are zero
    Byte last[kLanes * T::kBytes] = {};
    std::memcpy(last, p, n * T::kBytes);
    return T::get(last);
}
template <class T>
HETERO_INLINE void put(Byte* p, F32x16 v, std::size_t n) {
    Byte last[kLanes * T::kBytes];
    T::put(last, v);
    std::memcpy(p, last, n * T::kBytes);
}
template <class T>
HETERO_INLINE const Byte* row_of(const KvValues& x, std::size_t row) {
    return static_cast<const Byte*>(x.data) + row * x.stride * T::kBytes;
}
HETERO_INLINE void raise(float* error, F32x16 worst) {
    const float found = max_lane(worst);
    if (found > *error) *error = found;
}

// Memory is read this far ahead of where it is worked on: the processor's own prefetching reaches half of its rate.
constexpr std::size_t kReadAhead = 2048;
HETERO_INLINE void prefetch(const Byte* p) { __builtin_prefetch(p + kReadAhead); }
// What lies `ahead` bytes further, in steps of a cache line: blocks that are read twice have the next one fetched while
// their codes are made, which takes longer than their extremes.
HETERO_INLINE void prefetch_some(const Byte* p, std::size_t bytes, std::size_t ahead) {
    for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i + ahead);
}

// ---- extremes

constexpr std::size_t kWords = 32, kBatch = 64;

// 16-bit floats with a sign: as integers they have the order of their values once the negative ones are reversed.
HETERO_INLINE std::uint16_t bits_of_order(int order) {
    return static_cast<std::uint16_t>(order < 0 ? order ^ 0x7fff : order);
}
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

template <class T, bool Magnitude, bool Ahead>
HETERO_INLINE bool extremes_of_words(const KvValues& x, float* mins, float* maxs) {
    int lowest = 0, highest = 0;
    std::uint16_t low[kBatch], high[kBatch];
    for (std::size_t first = 0; first < x.rows; first += kBatch) {
        const std::size_t rows = x.rows - first < kBatch ? x.rows - first : kBatch;
        for (std::size_t row = 0; row < rows; ++row) {
            const Byte* p = row_of<T>(x, first + row);
            if (Ahead) prefetch(p);
            const std::size_t head = x.n % kWords;  // what is no whole vector comes first
            I16x32 a = ordered<Magnitude>(head != 0 ? load_words(p, head) : load_i16(p)), b = a;
            for (std::size_t i = head != 0 ? head : kWords; i < x.n; i += kWords) {
                if (Ahead) prefetch(p + 2 * i);
                const I16x32 v = ordered<Magnitude>(load_i16(p + 2 * i));
                if (!Magnitude) a = min(a, v);
                b = max(b, v);
            }
            const int largest = largest_word(b);
            highest = largest > highest ? largest : highest;
            high[row] = bits_of_order(largest);
            if (Magnitude) continue;
            const int smallest = smallest_word(a);
            lowest = smallest < lowest ? smallest : lowest;
            low[row] = bits_of_order(smallest);
        }
        T::widen(high, maxs + first, rows);
        if (!Magnitude) T::widen(low, mins + first, rows);
    }
    return highest < T::kInfinity && lowest >= -T::kInfinity;
}

template <bool Magnitude>
HETERO_INLINE bool extremes_of_floats(const KvValues& x, float* mins, float* maxs) {
    F32x16 poison = zero();  // 0 * x is NaN for infinities and NaN
    for (std::size_t row = 0; row < x.rows; ++row) {
        const auto* p = reinterpret_cast<const float*>(row_of<AsF32>(x, row));
        const F32x16 first = splat(p[0]);
        F32x16 low = first, high = first;
        for (std::size_t i = 0; i < x.n; i += kLanes) {
            const std::size_t left = x.n - i;
            const F32x16 v = left >= kLanes ? load(p + i) : where_between(0, left, load(p + i, left), first);
            poison = fma(v, zero(), poison);
            if (!Magnitude) low = min(low, v);
            high = Magnitude ? max_abs(high, v) : max(high, v);
        }
        if (!Magnitude) mins[row] = min_lane(low);
        maxs[row] = max_lane(high);
    }
    return sum(poison) == 0;
}

// Ahead: what comes next is fetched.
template <class T, bool Magnitude, bool Ahead>
HETERO_INLINE bool row_extremes(const KvValues& x, float* mins, float* maxs) {
    if constexpr (T::kBytes == 2) {
        return extremes_of_words<T, Magnitude, Ahead>(x, mins, maxs);
    } else {
        return extremes_of_floats<Magnitude>(x, mins, maxs);
    }
}

// f with the type that a block has, AsF16{} for one.
template <class F>
HETERO_INLINE auto with_type(DType type, F f) {
    return type == DType::f16 ? f(AsF16{}) : type == DType::bf16 ? f(AsBf16{}) : f(AsF32{});
}

bool min_max_rows(const KvValues& x, float* mins, float* maxs) {
    if (x.n == 0) return ref::min_max_rows(x, mins, maxs);
    return with_type(x.type, [&](auto type) {
        using T = decltype(type);
        return mins == nullptr ? row_extremes<T, true, true>(x, mins, maxs)
                               : row_extremes<T, false, true>(x, mins, maxs);
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
    std::uint16_t words[N * kWords];
    I16x32 lowest = splat_i16(0), highest = lowest;
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
        highest = max(highest, high[j]);
        lowest = min(lowest, low[j]);
        store_i16(words + kWords * j, negative_reversed(high[j]));
    }
    T::widen(words, maxs + column, n);
    if (!Magnitude) {
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) store_i16(words + kWords * j, negative_reversed(low[j]));
        T::widen(words, mins + column, n);
    }
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

// The nearest f16 is the wanted one or its neighbour, which an exact comparison in binary64 tells: a scale has 11 bits.
// n <= kBatch groups; the bits, and the numbers that they are. False: some are infinite.
template <bool Zero>
HETERO_INLINE bool batch_scales(const float* mins, const float* maxs, std::size_t n, int levels,
                                std::uint16_t* scale_bits, float* scale, std::uint16_t* zero_bits, float* zero_point) {
    const float inverse = 1 / static_cast<float>(levels);
    const double wide_levels = levels;
    std::uint32_t infinite = 0;
    alignas(64) double range[kBatch];
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
            infinite |= (zero_bits[i] & 0x7FFFU) == 0x7C00 ? 1U : 0U;
        }
        for (std::size_t i = 0; i < padded; i += kLanes) store(zero_point + i, load_f16(zero_bits + i));
        for (std::size_t i = 0; i < padded; ++i) range[i] = static_cast<double>(maxs[i]) - zero_point[i];
    } else {
        for (std::size_t i = 0; i < padded; ++i) range[i] = maxs[i];
    }
    for (std::size_t i = 0; i < padded; ++i) scale[i] = static_cast<float>(range[i]) * inverse + 0.0F;
    round_all(scale, scale_bits, scale);
    for (std::size_t i = 0; i < padded; ++i) {
        const std::uint32_t below = static_cast<double>(scale[i]) * wide_levels < range[i] ? 1 : 0;
        scale_bits[i] = static_cast<std::uint16_t>(scale_bits[i] + below);
        infinite |= scale_bits[i] >= 0x7C00 ? 1U : 0U;
    }
    for (std::size_t i = 0; i < padded; i += kLanes) store(scale + i, load_f16(scale_bits + i));
    return infinite == 0;
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

// ---- codes

// The scales of 16 values. A scale of 0 has the reciprocal 0.
struct Scales {
    F32x16 scale, reciprocal, zero_point;
};
HETERO_INLINE F32x16 reciprocal_of(F32x16 scale) {
    const F32x16 tiny = splat(1.4e-45F);  // the smallest number: a scale below it is 0
    return where_less(scale, tiny, zero(), splat(1) / where_less(scale, tiny, splat(1), scale));
}
HETERO_INLINE F32x16 exact_quotient(F32x16 d, F32x16 scale) {
    const F32x16 tiny = splat(1.4e-45F);
    return where_less(scale, tiny, zero(), d / where_less(scale, tiny, splat(1), scale));
}
// 1 / scale is subnormal or infinite, or the scale itself is subnormal.
HETERO_INLINE bool needs_division(float scale) { return scale != 0 && !(scale > 0x1p-120F && scale < 0x1p120F); }
// At most 11 bits, as an f16 has, and within its range.
HETERO_INLINE bool has_f16_bits(float scale) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &scale, 4);
    return (bits & 0x1FFFU) == 0 && scale >= 0 && scale < 65536 && (scale == 0 || scale >= 0x1p-24F);
}

// The codes of N times 16 values, by reciprocals. A product differs from the quotient by less than 2^-14 in the range
// of the codes, so that only near the middle of two integers could they be rounded apart: there the division decides.
template <bool Signed, bool Error, int N>
HETERO_INLINE void quantize_vectors(const F32x16* v, const Scales* by, bool divide, std::uint8_t* q, F32x16& worst) {
    F32x16 d[N], off = zero();
    I32x16 k[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
        d[j] = v[j] - by[j].zero_point;
        const F32x16 product = d[j] * by[j].reciprocal;
        k[j] = round_to_int(product);
        off = max_abs(off, from_integer(product));
    }
    if (__builtin_expect(divide || any_greater(off, splat(0.5F - 0x1p-13F)), 0)) {
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
            k[j] = round_to_int(exact_quotient(d[j], by[j].scale));
        }
    }
    store_codes<Signed, N>(q, k);
    if (!Error) return;
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) worst = max_abs(worst, to_float(k[j]) * by[j].scale + by[j].zero_point - v[j]);
}

// The same where value and scale have at most 11 bits and there is no zero. A quotient of such, x = X 2^a over s = S
// 2^b, is the middle t of two integers or at least 2^-12.1 away from it: (x / s - t) 2 S is a multiple of 2^(a - b +
// 1), or of 1, and a - b is not small where the quotient is near 1/2 or more. The product is off by less than 2^-15. So
// rounding it first to a multiple of 2^-14, which adding 768 does, gives a middle where there is one, and the right
// side elsewhere.
template <bool Signed, bool Error, int N>
HETERO_INLINE void quantize_short(const F32x16* v, const Scales* by, std::uint8_t* q, F32x16& worst) {
    I32x16 k[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
        k[j] = round_to_int(fma(v[j], by[j].reciprocal, splat(768)) - splat(768));
        if (Error) worst = max_abs(worst, fma(to_float(k[j]), zero() - by[j].scale, v[j]));  // exact but for the sum
    }
    store_codes<Signed, N>(q, k);
}

// Fewer than 16 values.
template <bool Signed, bool Error>
HETERO_INLINE void quantize_last(F32x16 v, const Scales& by, std::uint8_t* q, std::size_t n, F32x16& worst) {
    std::uint8_t codes[kLanes];
    F32x16 found = zero();
    quantize_vectors<Signed, Error, 1>(&v, &by, true, codes, found);
    std::memcpy(q, codes, n);
    worst = max(worst, where_between(0, n, found, zero()));
}

template <class T, bool Signed, bool Error, bool Short>
HETERO_INLINE void quantize_row(const Byte* p, std::size_t n, const Scales& one, bool divide, std::uint8_t* q,
                                F32x16& worst) {
    const Scales by[4] = {one, one, one, one};
    F32x16 v[4];
    std::size_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
        const Byte* at = p + i * T::kBytes;
#pragma GCC unroll 4
        for (std::size_t j = 0; j < 4; ++j) v[j] = T::get(at + j * kLanes * T::kBytes);
        if (Short) {
            quantize_short<Signed, Error, 4>(v, by, q + i, worst);
        } else {
            quantize_vectors<Signed, Error, 4>(v, by, divide, q + i, worst);
        }
    }
    for (; i + kLanes <= n; i += kLanes) {
        v[0] = T::get(p + i * T::kBytes);
        if (Short) {
            quantize_short<Signed, Error, 1>(v, by, q + i, worst);
        } else {
            quantize_vectors<Signed, Error, 1>(v, by, divide, q + i, worst);
        }
    }
    if (i < n) quantize_last<Signed, Error>(get<T>(p + i * T::kBytes, n - i), one, q + i, n - i, worst);
}

// No code of a group is further from its value than this: half a scale, and what f32 rounds on the way. A scale of 0
// has codes of 0, whatever the values.
HETERO_INLINE float largest_error(float scale, float zero_point) {
    if (scale == 0) return __builtin_huge_valf();
    return scale * 0.5F + (scale * 256 + __builtin_fabsf(zero_point)) * 0x1p-21F;
}

// Up to kBatch rows, whose scales and zeros (where Zero) are known. The error is measured where it may be larger than
// `worst`: a row in some hundred.
template <class T, bool Signed, bool Zero, bool Short>
HETERO_INLINE void quantize_batch(const KvValues& x, std::size_t first, std::size_t rows, const float* scale,
                                  const float* zero_point, std::uint8_t* q, std::size_t q_stride, float& worst,
                                  std::size_t ahead) {
    float reciprocal[kBatch];
    for (std::size_t r = 0; r < rows; r += kLanes) {
        const std::size_t n = rows - r < kLanes ? rows - r : kLanes;
        store(reciprocal + r, reciprocal_of(n < kLanes ? load(scale + r, n) : load(scale + r)));
    }
    for (std::size_t r = 0; r < rows; ++r, q += q_stride) {
        const Byte* p = row_of<T>(x, first + r);
        if (ahead != 0) prefetch_some(p, x.n * T::kBytes, ahead);
        const float z = Zero ? zero_point[r] : 0;
        const Scales one{splat(scale[r]), splat(reciprocal[r]), splat(z)};
        const bool divide = !Short && needs_division(scale[r]);
        if (__builtin_expect(largest_error(scale[r], z) > worst, 0)) {
            F32x16 found = zero();
            quantize_row<T, Signed, true, Short>(p, x.n, one, divide, q, found);
            raise(&worst, found);
        } else {
            F32x16 none = zero();
            quantize_row<T, Signed, false, Short>(p, x.n, one, divide, q, none);
        }
    }
}

template <class T, bool Signed>
void quantize_rows_as(const KvValues& x, const float* scale, const float* zero_point, std::uint8_t* q,
                      std::size_t q_stride, float* error) {
    float worst = error != nullptr ? *error : __builtin_huge_valf();
    for (std::size_t first = 0; first < x.rows; first += kBatch, q += kBatch * q_stride) {
        const std::size_t rows = x.rows - first < kBatch ? x.rows - first : kBatch;
        bool is_short = T::kBytes == 2 && zero_point == nullptr;
        for (std::size_t r = 0; r < rows; ++r) is_short &= has_f16_bits(scale[first + r]);
        if (is_short) {
            quantize_batch<T, Signed, false, T::kBytes == 2>(x, first, rows, scale + first, nullptr, q, q_stride, worst,
                                                             0);
        } else if (zero_point == nullptr) {
            quantize_batch<T, Signed, false, false>(x, first, rows, scale + first, nullptr, q, q_stride, worst, 0);
        } else {
            quantize_batch<T, Signed, true, false>(x, first, rows, scale + first, zero_point + first, q, q_stride,
                                                   worst, 0);
        }
    }
    if (error != nullptr) *error = worst;
}

// Extremes, scales and codes of a batch after the other, while it is in the nearest cache.
template <class T, bool Zero>
bool encode_rows_as(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero_point, std::uint8_t* q,
                    std::size_t q_stride, float* error) {
    constexpr std::size_t batch = 32;
    alignas(64) float low[kBatch] = {}, high[kBatch] = {}, scales[kBatch], zeros[kBatch];
    std::uint16_t scale_bits[kBatch], zero_bits[kBatch];
    float worst = error != nullptr ? *error : __builtin_huge_valf();
    for (std::size_t first = 0; first < x.rows; first += batch, q += batch * q_stride) {
        const std::size_t rows = x.rows - first < batch ? x.rows - first : batch;
        const KvValues some{x.type, row_of<T>(x, first), rows, x.stride, x.n};
        if (!row_extremes<T, !Zero, false>(some, low, high)) return false;
        if (!batch_scales<Zero>(low, high, rows, levels, scale_bits, scales, zero_bits, zeros)) return false;
        std::memcpy(scale + first, scale_bits, rows * sizeof scale_bits[0]);
        if (Zero) std::memcpy(zero_point + first, zero_bits, rows * sizeof zero_bits[0]);
        quantize_batch<T, !Zero, Zero, !Zero && T::kBytes == 2>(x, first, rows, scales, zeros, q, q_stride, worst,
                                                                batch * x.stride * T::kBytes);
    }
    if (error != nullptr) *error = worst;
    return true;
}

HETERO_INLINE Scales column_scales(const float* scale, const float* zero_point, std::size_t n, bool& divide) {
    for (std::size_t i = 0; i < n; ++i) divide |= needs_division(scale[i]);
    const F32x16 s = n < kLanes ? load(scale, n) : load(scale);
    return {s, reciprocal_of(s), zero_point == nullptr ? zero() : n < kLanes ? load(zero_point, n) : load(zero_point)};
}

template <class T, bool Signed, bool Short, bool Error>
HETERO_INLINE void quantize_four_columns(const KvValues& x, std::size_t i, const Scales* by, bool divide,
                                         std::uint8_t* q, std::size_t q_stride, F32x16& worst) {
    F32x16 v[4];
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
        const Byte* at = row_of<T>(x, row) + i * T::kBytes;
        prefetch_some(at, 4 * kLanes * T::kBytes, x.rows * x.stride * T::kBytes);
#pragma GCC unroll 4
        for (std::size_t j = 0; j < 4; ++j) v[j] = T::get(at + j * kLanes * T::kBytes);
        if (Short) {
            quantize_short<Signed, Error, 4>(v, by, q, worst);
        } else {
            quantize_vectors<Signed, Error, 4>(v, by, divide, q, worst);
        }
    }
}

template <class T, bool Signed, bool Short>
void quantize_columns_as(const KvValues& x, const float* scale, const float* zero_point, std::uint8_t* q,
                         std::size_t q_stride, float* error) {
    F32x16 worst = zero();
    std::size_t i = 0;
    const auto zeros = [&](std::size_t at) { return zero_point == nullptr ? nullptr : zero_point + at; };
    const auto may_raise = [&](std::size_t n) {
        float largest = 0;
        for (std::size_t c = i; error != nullptr && c < i + n; ++c) {
            const float one = largest_error(scale[c], zero_point == nullptr ? 0 : zero_point[c]);
            largest = one > largest ? one : largest;
        }
        return error != nullptr && largest > *error;
    };
    for (; i + 4 * kLanes <= x.n; i += 4 * kLanes) {
        bool divide = false;
        Scales by[4];
#pragma GCC unroll 4
        for (std::size_t j = 0; j < 4; ++j)
            by[j] = column_scales(scale + i + j * kLanes, zeros(i + j * kLanes), kLanes, divide);
        if (__builtin_expect(may_raise(4 * kLanes), 0)) {
            quantize_four_columns<T, Signed, Short, true>(x, i, by, divide, q + i, q_stride, worst);
            raise(error, worst);
        } else {
            quantize_four_columns<T, Signed, Short, false>(x, i, by, divide, q + i, q_stride, worst);
        }
    }
    for (; i < x.n; i += kLanes) {
        const std::size_t n = x.n - i < kLanes ? x.n - i : kLanes;
        bool divide = false;
        const Scales by = column_scales(scale + i, zeros(i), n, divide);
        for (std::size_t row = 0; row < x.rows; ++row)
            quantize_last<Signed, true>(get<T>(row_of<T>(x, row) + i * T::kBytes, n), by, q + row * q_stride + i, n,
                                        worst);
        if (error != nullptr) raise(error, worst);
    }
}

// What dequantizing finds beside values: what rounding took away, and the largest value. Neither is looked at where it
// cannot matter.
struct Found {
    F32x16 worst, largest;
};
HETERO_INLINE float larger_magnitude(float a, float b) {
    a = __builtin_fabsf(a);
    b = __builtin_fabsf(b);
    return (a > b ? a : b) * (1 + 0x1p-20F);
}
// No value of these codes is larger than this.
template <bool Signed>
HETERO_INLINE float largest_value(float scale, float zero_point) {
    return larger_magnitude(Signed ? zero_point - scale * 128 : zero_point, zero_point + scale * (Signed ? 128 : 255));
}
template <class T>
HETERO_INLINE bool matters(float largest, const float* error) {
    if (!(largest < T::kBeyond)) return true;
    // Half a unit in the last place of the largest, or of the smallest normal number.
    return error != nullptr && T::kBytes == 2 && T::rounded_away(largest) > *error;
}

template <class T, bool Signed, bool ByColumn, bool Checked>
HETERO_INLINE void dequantize_row(const std::uint8_t* q, const float* scale, const float* zero_point, std::size_t n,
                                  Byte* out, Found& found) {
    F32x16 s = splat(ByColumn ? 0 : *scale), z = splat(ByColumn || zero_point == nullptr ? 0 : *zero_point);
    const auto value_of = [&](U8x16 codes) { return (Signed ? signed_values(codes) : unsigned_values(codes)) * s + z; };
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        if (ByColumn) {
            s = load(scale + i);
            if (zero_point != nullptr) z = load(zero_point + i);
        }
        if (i % 64 == 0) prefetch(q + i);
        const F32x16 value = value_of(bytes_load(q + i));
        T::put(out + i * T::kBytes, value);
        if (!Checked) continue;
        found.largest = max_abs(found.largest, value);
        found.worst = max_abs(found.worst, T::get(out + i * T::kBytes) - value);
    }
    if (i == n) return;
    const std::size_t left = n - i;
    Byte last[kLanes] = {}, stored[kLanes * T::kBytes];
    std::memcpy(last, q + i, left);
    if (ByColumn) {
        s = load(scale + i, left);
        if (zero_point != nullptr) z = load(zero_point + i, left);
    }
    const F32x16 value = where_between(0, left, value_of(bytes_load(last)), zero());
    T::put(stored, value);
    std::memcpy(out + i * T::kBytes, stored, left * T::kBytes);
    found.largest = max_abs(found.largest, value);
    found.worst = max_abs(found.worst, T::get(stored) - value);
}

template <class T, bool Signed, bool ByColumn>
bool dequantize_as(const std::uint8_t* q, std::size_t q_stride, const float* scale, const float* zero_point,
                   const KvOutput& x, float* error) {
    Found found{zero(), zero()};
    auto* out = static_cast<Byte*>(x.data);
    const auto zero_of = [&](std::size_t i) { return zero_point == nullptr ? 0 : zero_point[i]; };
    bool checked = false;
    if (ByColumn) {
        float largest = 0;
        for (std::size_t c = 0; c < x.n; ++c) {
            const float one = largest_value<Signed>(scale[c], zero_of(c));
            largest = one > largest ? one : largest;
        }
        checked = matters<T>(largest, error);
    }
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride, out += x.stride * T::kBytes) {
        const float* s = ByColumn ? scale : scale + row;
        const float* z = ByColumn || zero_point == nullptr ? zero_point : zero_point + row;
        if (!ByColumn) checked = matters<T>(largest_value<Signed>(*s, zero_of(row)), error);
        if (__builtin_expect(checked, 0)) {
            dequantize_row<T, Signed, ByColumn, true>(q, s, z, x.n, out, found);
            if (!ByColumn && error != nullptr && row % 8 == 0) raise(error, found.worst);
        } else {
            dequantize_row<T, Signed, ByColumn, false>(q, s, z, x.n, out, found);
        }
    }
    if (error != nullptr) raise(error, found.worst);
    return max_lane(found.largest) < T::kBeyond;
}

void quantize_rows(const KvValues& x, const float* scale, const float* zero_point, bool is_signed, std::uint8_t* q,
                   std::size_t q_stride, float* error) {
    with_type(x.type, [&](auto type) {
        using T = decltype(type);
        is_signed ? quantize_rows_as<T, true>(x, scale, zero_point, q, q_stride, error)
                  : quantize_rows_as<T, false>(x, scale, zero_point, q, q_stride, error);
    });
}

bool encode_rows(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero_point, std::uint8_t* q,
                 std::size_t q_stride, float* error) {
    if (x.n == 0) return ref::encode_rows(x, levels, scale, zero_point, q, q_stride, error);
    return with_type(x.type, [&](auto type) {
        using T = decltype(type);
        return zero_point == nullptr ? encode_rows_as<T, false>(x, levels, scale, zero_point, q, q_stride, error)
                                     : encode_rows_as<T, true>(x, levels, scale, zero_point, q, q_stride, error);
    });
}

void quantize_columns(const KvValues& x, const float* scale, const float* zero_point, bool is_signed, std::uint8_t* q,
                      std::size_t q_stride, float* error) {
    bool is_short = x.type != DType::f32 && zero_point == nullptr;
    for (std::size_t i = 0; i < x.n; ++i) is_short &= has_f16_bits(scale[i]);
    with_type(x.type, [&](auto type) {
        using T = decltype(type);
        constexpr bool can_be_short = T::kBytes == 2;
        const auto run = [&](auto codes_signed) {
            constexpr bool kSigned = decltype(codes_signed)::value;
            is_short ? quantize_columns_as<T, kSigned, can_be_short>(x, scale, zero_point, q, q_stride, error)
                     : quantize_columns_as<T, kSigned, false>(x, scale, zero_point, q, q_stride, error);
        };
        is_signed ? run(Yes{}) : run(No{});
    });
}

template <bool ByColumn>
HETERO_INLINE bool dequantize_codes(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                                    const float* zero_point, const KvOutput& x, float* error) {
    return with_type(x.type, [&](auto type) {
        using T = decltype(type);
        return is_signed ? dequantize_as<T, true, ByColumn>(q, q_stride, scale, zero_point, x, error)
                         : dequantize_as<T, false, ByColumn>(q, q_stride, scale, zero_point, x, error);
    });
}

bool dequantize_rows(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                     const float* zero_point, const KvOutput& x, float* error) {
    return dequantize_codes<false>(q, q_stride, is_signed, scale, zero_point, x, error);
}

bool dequantize_columns(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                        const float* zero_point, const KvOutput& x, float* error) {
    return dequantize_codes<true>(q, q_stride, is_signed, scale, zero_point, x, error);
}

template <class T>
void max_difference_as(const KvValues& x, const float* y, float* error) {
    F32x16 worst = zero();
    for (std::size_t row = 0; row < x.rows; ++row, y += x.n) {
        const Byte* p = row_of<T>(x, row);
        std::size_t i = 0;
        for (; i + kLanes <= x.n; i += kLanes) worst = max_abs(worst, T::get(p + i * T::kBytes) - load(y + i));
        if (i < x.n) worst = max_abs(worst, get<T>(p + i * T::kBytes, x.n - i) - load(y + i, x.n - i));
    }
    raise(error, worst);
}

void max_difference(const KvValues& x, const float* y, float* error) {
    switch (x.type) {
        case DType::f16:
            return max_difference_as<AsF16>(x, y, error);
        case DType::bf16:
            return max_difference_as<AsBf16>(x, y, error);
        default:
            return max_difference_as<AsF32>(x, y, error);
    }
}

// ---- rotated heads: a row is one, of 16 N values

template <class T, int N>
HETERO_INLINE void rotate_rows_as(const KvValues& x, float* y, F32x16 factor, const LaneButterflies& lanes) {
    for (std::size_t row = 0; row < x.rows; ++row, y += kLanes * N) {
        const Byte* p = row_of<T>(x, row);
        for (std::size_t i = 0; i < x.n * T::kBytes; i += 64) prefetch(p + i);
        F32x16 v[N];
#pragma GCC unroll 8
        for (std::size_t i = 0; i < N; ++i) v[i] = T::get(p + i * kLanes * T::kBytes);
        rotate_registers<N>(v, factor, lanes);
#pragma GCC unroll 8
        for (std::size_t i = 0; i < N; ++i) store(y + kLanes * i, v[i]);
    }
}

template <int N, bool Signed>
HETERO_INLINE void rotated_values(const std::uint8_t* q, float scale, float zero_point, F32x16 factor,
                                  const LaneButterflies& lanes, F32x16 (&v)[N]) {
    const F32x16 s = splat(scale), z = splat(zero_point);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < N; ++i) {
        const U8x16 codes = bytes_load(q + kLanes * i);
        v[i] = (Signed ? signed_values(codes) : unsigned_values(codes)) * s + z;
    }
    rotate_registers<N>(v, factor, lanes);
}

template <class T, int N, bool Signed>
HETERO_INLINE bool dequantize_rotated_as(const std::uint8_t* q, std::size_t q_stride, const float* scale,
                                         const float* zero_point, const KvOutput& x, float* error, F32x16 factor,
                                         const LaneButterflies& lanes) {
    F32x16 largest = zero(), worst = zero(), v[N];
    auto* out = static_cast<Byte*>(x.data);
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride, out += x.stride * T::kBytes) {
        prefetch(q);
        rotated_values<N, Signed>(q, scale[row], zero_point == nullptr ? 0 : zero_point[row], factor, lanes, v);
#pragma GCC unroll 8
        for (std::size_t i = 0; i < N; ++i) {
            T::put(out + i * kLanes * T::kBytes, v[i]);
            largest = max_abs(largest, v[i]);
            worst = max_abs(worst, T::get(out + i * kLanes * T::kBytes) - v[i]);
        }
    }
    if (error != nullptr) raise(error, worst);
    return max_lane(largest) < T::kBeyond;
}

template <class T, int N, bool Signed>
HETERO_INLINE void rotated_difference_as(const std::uint8_t* q, std::size_t q_stride, const float* scale,
                                         const float* zero_point, const KvValues& x, float* error, F32x16 factor,
                                         const LaneButterflies& lanes) {
    F32x16 worst = zero(), v[N];
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
        const Byte* p = row_of<T>(x, row);
        prefetch_some(p, x.n * T::kBytes, x.rows * x.stride * T::kBytes);
        rotated_values<N, Signed>(q, scale[row], zero_point == nullptr ? 0 : zero_point[row], factor, lanes, v);
#pragma GCC unroll 8
        for (std::size_t i = 0; i < N; ++i) worst = max_abs(worst, T::get(p + i * kLanes * T::kBytes) - v[i]);
    }
    raise(error, worst);
}

// f<N> for heads of 16 N values that are one block of the transform; false where there are no such.
template <int N>
struct Registers {
    static constexpr int value = N;
};
template <class F>
HETERO_INLINE bool with_registers(std::size_t n, F f) {
    switch (n) {
        case 16:
            return f(Registers<1>{}), true;
        case 32:
            return f(Registers<2>{}), true;
        case 64:
            return f(Registers<4>{}), true;
        case 128:
            return f(Registers<8>{}), true;
        default:
            return false;
    }
}
HETERO_INLINE F32x16 rotation_factor(std::size_t n) {
    return splat(static_cast<float>(1 / __builtin_sqrt(static_cast<double>(n))));
}

void rotate_rows(const KvValues& x, float* y) {
    const F32x16 factor = rotation_factor(x.n);
    const LaneButterflies lanes = lane_butterflies();
    if (with_registers(x.n, [&](auto n) {
            with_type(x.type,
                      [&](auto type) { rotate_rows_as<decltype(type), decltype(n)::value>(x, y, factor, lanes); });
        })) {
        return;
    }
    with_type(x.type, [&](auto type) {
        using T = decltype(type);
        for (std::size_t row = 0; row < x.rows; ++row) {
            float* to = y + row * x.n;
            const Byte* p = row_of<T>(x, row);
            std::size_t i = 0;
            for (; i + kLanes <= x.n; i += kLanes) store(to + i, T::get(p + i * T::kBytes));
            if (i < x.n) store(to + i, get<T>(p + i * T::kBytes, x.n - i), x.n - i);
        }
    });
    const std::size_t n = x.n & (~x.n + 1);
    if (x.n != 0) hadamard(y, y, x.rows * x.n / n, n);
}

// Heads that are no single block in registers.
constexpr std::size_t kMaxHead = 1024;
void rotated_row(const std::uint8_t* q, bool is_signed, float scale, float zero_point, std::size_t n, float* out) {
    (void)dequantize_codes<false>(q, n, is_signed, &scale, &zero_point, {DType::f32, out, 1, n, n}, nullptr);
    const std::size_t block = n & (~n + 1);
    if (n != 0) hadamard(out, out, n / block, block);
}

bool dequantize_rotated(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                        const float* zero_point, const KvOutput& x, float* error) {
    const F32x16 factor = rotation_factor(x.n);
    const LaneButterflies lanes = lane_butterflies();
    bool fits = false;
    const bool done = with_registers(x.n, [&](auto n) {
        constexpr int kN = decltype(n)::value;
        fits = with_type(x.type, [&](auto type) {
            using T = decltype(type);
            return is_signed
                       ? dequantize_rotated_as<T, kN, true>(q, q_stride, scale, zero_point, x, error, factor, lanes)
                       : dequantize_rotated_as<T, kN, false>(q, q_stride, scale, zero_point, x, error, factor, lanes);
        });
    });
    if (done) return fits;
    if (x.n > kMaxHead) return ref::dequantize_rotated(q, q_stride, is_signed, scale, zero_point, x, error);
    return with_type(x.type, [&](auto type) {
        using T = decltype(type);
        float values[kMaxHead];
        F32x16 largest = zero(), worst = zero();
        for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
            rotated_row(q, is_signed, scale[row], zero_point == nullptr ? 0 : zero_point[row], x.n, values);
            Byte* out = static_cast<Byte*>(x.data) + row * x.stride * T::kBytes;
            for (std::size_t i = 0; i < x.n; i += kLanes) {
                const std::size_t left = x.n - i < kLanes ? x.n - i : kLanes;
                const F32x16 v = left < kLanes ? load(values + i, left) : load(values + i);
                put<T>(out + i * T::kBytes, v, left);
                largest = max_abs(largest, v);
                worst = max_abs(worst, get<T>(out + i * T::kBytes, left) - v);
            }
        }
        if (error != nullptr) raise(error, worst);
        return max_lane(largest) < T::kBeyond;
    });
}

void rotated_difference(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                        const float* zero_point, const KvValues& x, float* error) {
    const F32x16 factor = rotation_factor(x.n);
    const LaneButterflies lanes = lane_butterflies();
    const bool done = with_registers(x.n, [&](auto n) {
        constexpr int kN = decltype(n)::value;
        with_type(x.type, [&](auto type) {
            using T = decltype(type);
            is_signed ? rotated_difference_as<T, kN, true>(q, q_stride, scale, zero_point, x, error, factor, lanes)
                      : rotated_difference_as<T, kN, false>(q, q_stride, scale, zero_point, x, error, factor, lanes);
        });
    });
    if (done) return;
    if (x.n > kMaxHead) return ref::rotated_difference(q, q_stride, is_signed, scale, zero_point, x, error);
    float values[kMaxHead];
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
        rotated_row(q, is_signed, scale[row], zero_point == nullptr ? 0 : zero_point[row], x.n, values);
        const auto* data = static_cast<const Byte*>(x.data) + row * x.stride * (x.type == DType::f32 ? 4 : 2);
        max_difference({x.type, data, 1, x.n, x.n}, values, error);
    }
}

void copy_streaming(void* to, const void* from, std::size_t bytes) {
    auto* out = static_cast<Byte*>(to);
    const auto* in = static_cast<const Byte*>(from);
    constexpr std::size_t line = 64;
    std::size_t head = (line - reinterpret_cast<std::uintptr_t>(out) % line) % line;
    if (head > bytes) head = bytes;
    if (head > 0) std::memcpy(out, in, head);
    std::size_t i = head;
    for (; i + line <= bytes; i += line) stream_line(out + i, in + i);
    if (i < bytes) std::memcpy(out + i, in + i, bytes - i);
    stream_end();
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
