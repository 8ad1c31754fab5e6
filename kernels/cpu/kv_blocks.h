// Blocks of the KV state to codes and back, exactly the scalar operations (ref/kv_blocks.cpp). Values are widened as
// they are loaded and codes packed as they are stored, so that a block crosses memory once. Included by generic.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

// How a type lies in memory. beyond: the smallest magnitude that it rounds to infinity.
struct AsF32 {
    static constexpr std::size_t kBytes = 4;
    static constexpr float kBeyond = __builtin_huge_valf();
    static HETERO_INLINE F32x16 get(const Byte* p) { return load(reinterpret_cast<const float*>(p)); }
    static HETERO_INLINE void put(Byte* p, F32x16 v) { store(reinterpret_cast<float*>(p), v); }
};
struct AsF16 {
    static constexpr std::size_t kBytes = 2;
    static constexpr int kInfinity = 0x7C00;
    static constexpr float kBeyond = 65520;
    static HETERO_INLINE F32x16 get(const Byte* p) { return load_f16(p); }
    static HETERO_INLINE void put(Byte* p, F32x16 v) { store_f16(p, v); }
    static void widen(const std::uint16_t* bits, float* x, std::size_t n) { f16_to_f32(bits, x, n); }
};
struct AsBf16 {
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

template <class T, bool Magnitude>
bool extremes_of_words(const KvValues& x, float* mins, float* maxs) {
    int lowest = 0, highest = 0;
    std::uint16_t low[kBatch], high[kBatch];
    for (std::size_t first = 0; first < x.rows; first += kBatch) {
        const std::size_t rows = x.rows - first < kBatch ? x.rows - first : kBatch;
        for (std::size_t row = 0; row < rows; ++row) {
            const Byte* p = row_of<T>(x, first + row);
            prefetch(p);
            const std::size_t head = x.n % kWords;  // what is no whole vector comes first
            I16x32 a = ordered<Magnitude>(head != 0 ? load_words(p, head) : load_i16(p)), b = a;
            for (std::size_t i = head != 0 ? head : kWords; i < x.n; i += kWords) {
                prefetch(p + 2 * i);
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
bool extremes_of_floats(const KvValues& x, float* mins, float* maxs) {
    F32x16 poison = zero();  // 0 * x is NaN for infinities and NaN
    for (std::size_t row = 0; row < x.rows; ++row) {
        const auto* p = reinterpret_cast<const float*>(row_of<AsF32>(x, row));
        const F32x16 first = splat(p[0]);
        F32x16 low = first, high = Magnitude ? abs(first) : first;
        for (std::size_t i = 0; i < x.n; i += kLanes) {
            const std::size_t left = x.n - i;
            F32x16 v = left >= kLanes ? load(p + i) : where_between(0, left, load(p + i, left), first);
            poison = fma(v, zero(), poison);
            if (Magnitude) v = abs(v);
            if (!Magnitude) low = min(low, v);
            high = max(high, v);
        }
        if (!Magnitude) mins[row] = min_lane(low);
        maxs[row] = max_lane(high);
    }
    return sum(poison) == 0;
}

bool min_max_rows(const KvValues& x, float* mins, float* maxs) {
    if (x.n == 0) return ref::min_max_rows(x, mins, maxs);
    switch (x.type) {
        case DType::f16:
            return mins == nullptr ? extremes_of_words<AsF16, true>(x, mins, maxs)
                                   : extremes_of_words<AsF16, false>(x, mins, maxs);
        case DType::bf16:
            return mins == nullptr ? extremes_of_words<AsBf16, true>(x, mins, maxs)
                                   : extremes_of_words<AsBf16, false>(x, mins, maxs);
        default:
            return mins == nullptr ? extremes_of_floats<true>(x, mins, maxs) : extremes_of_floats<false>(x, mins, maxs);
    }
}

// Columns of 16-bit floats, N times 32 side by side.
template <class T, bool Magnitude, int N>
bool column_extremes_of_words(const KvValues& x, std::size_t column, std::size_t n, float* mins, float* maxs) {
    I16x32 low[N], high[N];
    const Byte* p = row_of<T>(x, 0) + 2 * column;
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j)
        low[j] = high[j] = ordered<Magnitude>(n < kWords ? load_words(p, n) : load_i16(p + 2 * kWords * j));
    for (std::size_t row = 1; row < x.rows; ++row) {
        p = row_of<T>(x, row) + 2 * column;
#pragma GCC unroll 2
        for (int j = 0; j < N; ++j) {
            prefetch(p + 2 * kWords * j);
            const I16x32 v = ordered<Magnitude>(n < kWords ? load_words(p, n) : load_i16(p + 2 * kWords * j));
            if (!Magnitude) low[j] = min(low[j], v);
            high[j] = max(high[j], v);
        }
    }
    std::uint16_t words[N * kWords];
    I16x32 lowest = splat_i16(0), highest = lowest;
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
        highest = max(highest, high[j]);
        lowest = min(lowest, low[j]);
        store_i16(words + kWords * j, negative_reversed(high[j]));
    }
    T::widen(words, maxs + column, n);
    if (!Magnitude) {
#pragma GCC unroll 2
        for (int j = 0; j < N; ++j) store_i16(words + kWords * j, negative_reversed(low[j]));
        T::widen(words, mins + column, n);
    }
    return largest_word(highest) < T::kInfinity && smallest_word(lowest) >= -T::kInfinity;
}

template <class T, bool Magnitude>
bool column_extremes(const KvValues& x, float* mins, float* maxs) {
    bool finite = true;
    std::size_t i = 0;
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
bool group_scales(const float* mins, const float* maxs, std::size_t n, int levels, std::uint16_t* scale,
                  std::uint16_t* zero_point) {
    const float inverse = 1 / static_cast<float>(levels);
    const double wide_levels = levels;
    std::uint32_t infinite = 0;
    for (std::size_t first = 0; first < n; first += kBatch) {
        const std::size_t count = n - first < kBatch ? n - first : kBatch;
        float nearest[kBatch], value[kBatch];
        double range[kBatch];
        std::uint16_t bits[kBatch];
        if (zero_point == nullptr) {
            for (std::size_t i = 0; i < count; ++i) range[i] = maxs[first + i];
        } else {
            f32_to_f16(mins + first, bits, count);
            f16_to_f32(bits, value, count);
            for (std::size_t i = 0; i < count; ++i) {
                const std::uint32_t above = value[i] > mins[first + i] ? 1 : 0, negative = bits[i] >> 15;
                const std::uint32_t lower = bits[i] - above + 2 * (above & negative);
                bits[i] = static_cast<std::uint16_t>(lower == 0x8000 ? 0 : lower);
                infinite |= (bits[i] & 0x7FFFU) == 0x7C00 ? 1U : 0U;
            }
            f16_to_f32(bits, value, count);
            for (std::size_t i = 0; i < count; ++i) range[i] = static_cast<double>(maxs[first + i]) - value[i];
            std::memcpy(zero_point + first, bits, count * sizeof bits[0]);
        }
        for (std::size_t i = 0; i < count; ++i) nearest[i] = static_cast<float>(range[i]) * inverse + 0.0F;
        f32_to_f16(nearest, bits, count);
        f16_to_f32(bits, nearest, count);
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint32_t below = static_cast<double>(nearest[i]) * wide_levels < range[i] ? 1 : 0;
            bits[i] = static_cast<std::uint16_t>(bits[i] + below);
            infinite |= bits[i] >= 0x7C00 ? 1U : 0U;
        }
        std::memcpy(scale + first, bits, count * sizeof bits[0]);
    }
    return infinite == 0;
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
    F32x16 d[N], rounded[N], off = zero();
    I32x16 k[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
        d[j] = v[j] - by[j].zero_point;
        const F32x16 product = d[j] * by[j].reciprocal;
        k[j] = round_to_int(product);
        rounded[j] = to_float(k[j]);
        off = max_abs(off, product - rounded[j]);
    }
    if (__builtin_expect(divide || any_greater(off, splat(0.5F - 0x1p-13F)), 0)) {
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
            k[j] = round_to_int(exact_quotient(d[j], by[j].scale));
            rounded[j] = to_float(k[j]);
        }
    }
    store_codes<Signed, N>(q, k);
    if (!Error) return;
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) worst = max_abs(worst, rounded[j] * by[j].scale + by[j].zero_point - v[j]);
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

template <class T, bool Signed, bool Error>
void quantize_rows_as(const KvValues& x, const float* scale, const float* zero_point, std::uint8_t* q,
                      std::size_t q_stride, float* error) {
    F32x16 worst = zero();
    for (std::size_t first = 0; first < x.rows; first += kBatch) {
        const std::size_t rows = x.rows - first < kBatch ? x.rows - first : kBatch;
        float reciprocal[kBatch];
        bool is_short = T::kBytes == 2 && zero_point == nullptr;
        for (std::size_t r = 0; r < rows; r += kLanes) {
            const std::size_t n = rows - r < kLanes ? rows - r : kLanes;
            store(reciprocal + r, reciprocal_of(n < kLanes ? load(scale + first + r, n) : load(scale + first + r)));
        }
        for (std::size_t r = 0; r < rows; ++r) is_short &= has_f16_bits(scale[first + r]);
        for (std::size_t r = 0; r < rows; ++r, q += q_stride) {
            const Byte* p = row_of<T>(x, first + r);
            Scales one{splat(scale[first + r]), splat(reciprocal[r]), zero()};
            if (is_short) {
                quantize_row<T, Signed, Error, true>(p, x.n, one, false, q, worst);
                continue;
            }
            if (zero_point != nullptr) one.zero_point = splat(zero_point[first + r]);
            quantize_row<T, Signed, Error, false>(p, x.n, one, needs_division(scale[first + r]), q, worst);
        }
    }
    if (Error) raise(error, worst);
}

HETERO_INLINE Scales column_scales(const float* scale, const float* zero_point, std::size_t n, bool& divide) {
    for (std::size_t i = 0; i < n; ++i) divide |= needs_division(scale[i]);
    const F32x16 s = n < kLanes ? load(scale, n) : load(scale);
    return {s, reciprocal_of(s), zero_point == nullptr ? zero() : n < kLanes ? load(zero_point, n) : load(zero_point)};
}

template <class T, bool Signed, bool Error>
void quantize_columns_as(const KvValues& x, const float* scale, const float* zero_point, std::uint8_t* q,
                         std::size_t q_stride, float* error) {
    F32x16 worst = zero(), v[4];
    bool is_short = T::kBytes == 2 && zero_point == nullptr;
    for (std::size_t i = 0; i < x.n; ++i) is_short &= has_f16_bits(scale[i]);
    std::size_t i = 0;
    const auto zeros = [&](std::size_t at) { return zero_point == nullptr ? nullptr : zero_point + at; };
    for (; i + 4 * kLanes <= x.n; i += 4 * kLanes) {
        bool divide = false;
        Scales by[4];
#pragma GCC unroll 4
        for (std::size_t j = 0; j < 4; ++j)
            by[j] = column_scales(scale + i + j * kLanes, zeros(i + j * kLanes), kLanes, divide);
        for (std::size_t row = 0; row < x.rows; ++row) {
            const Byte* at = row_of<T>(x, row) + i * T::kBytes;
#pragma GCC unroll 4
            for (std::size_t j = 0; j < 4; ++j) v[j] = T::get(at + j * kLanes * T::kBytes);
            if (is_short) {
                quantize_short<Signed, Error, 4>(v, by, q + row * q_stride + i, worst);
            } else {
                quantize_vectors<Signed, Error, 4>(v, by, divide, q + row * q_stride + i, worst);
            }
        }
    }
    for (; i < x.n; i += kLanes) {
        const std::size_t n = x.n - i < kLanes ? x.n - i : kLanes;
        bool divide = false;
        const Scales by = column_scales(scale + i, zeros(i), n, divide);
        for (std::size_t row = 0; row < x.rows; ++row)
            quantize_last<Signed, Error>(get<T>(row_of<T>(x, row) + i * T::kBytes, n), by, q + row * q_stride + i, n,
                                         worst);
    }
    if (Error) raise(error, worst);
}

template <class T, bool Signed, bool Error>
bool dequantize_as(const std::uint8_t* q, std::size_t q_stride, const float* scale, const float* zero_point,
                   bool by_column, const KvOutput& x, float* error) {
    F32x16 worst = zero(), largest = zero();
    auto* out = static_cast<Byte*>(x.data);
    const auto value_of = [](U8x16 codes, F32x16 s, F32x16 z) {
        return (Signed ? signed_values(codes) : unsigned_values(codes)) * s + z;
    };
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride, out += x.stride * T::kBytes) {
        F32x16 s = splat(by_column ? 0 : scale[row]),
               z = splat(by_column || zero_point == nullptr ? 0 : zero_point[row]);
        std::size_t i = 0;
        for (; i + kLanes <= x.n; i += kLanes) {
            if (by_column) {
                s = load(scale + i);
                if (zero_point != nullptr) z = load(zero_point + i);
            }
            if (i % 64 == 0) prefetch(q + i);
            const F32x16 value = value_of(bytes_load(q + i), s, z);
            T::put(out + i * T::kBytes, value);
            largest = max_abs(largest, value);
            if (Error) worst = max_abs(worst, T::get(out + i * T::kBytes) - value);
        }
        if (i == x.n) continue;
        const std::size_t n = x.n - i;
        Byte last[kLanes] = {}, stored[kLanes * T::kBytes];
        std::memcpy(last, q + i, n);
        if (by_column) {
            s = load(scale + i, n);
            if (zero_point != nullptr) z = load(zero_point + i, n);
        }
        const F32x16 value = where_between(0, n, value_of(bytes_load(last), s, z), zero());
        T::put(stored, value);
        std::memcpy(out + i * T::kBytes, stored, n * T::kBytes);
        largest = max_abs(largest, value);
        if (Error) worst = max_abs(worst, T::get(stored) - value);
    }
    if (Error) raise(error, worst);
    return max_lane(largest) < T::kBeyond;
}

// Calls f<T, Signed, Error>.
#define HETERO_KV_CALL(type, is_signed, error, f, ...)                                                        \
    (is_signed) ? ((error) != nullptr ? f<type, true, true>(__VA_ARGS__) : f<type, true, false>(__VA_ARGS__)) \
                : ((error) != nullptr ? f<type, false, true>(__VA_ARGS__) : f<type, false, false>(__VA_ARGS__))
#define HETERO_KV_DISPATCH(dtype, is_signed, error, f, ...)                  \
    switch (dtype) {                                                         \
        case DType::f16:                                                     \
            return HETERO_KV_CALL(AsF16, is_signed, error, f, __VA_ARGS__);  \
        case DType::bf16:                                                    \
            return HETERO_KV_CALL(AsBf16, is_signed, error, f, __VA_ARGS__); \
        default:                                                             \
            return HETERO_KV_CALL(AsF32, is_signed, error, f, __VA_ARGS__);  \
    }

void quantize_rows(const KvValues& x, const float* scale, const float* zero_point, bool is_signed, std::uint8_t* q,
                   std::size_t q_stride, float* error) {
    HETERO_KV_DISPATCH(x.type, is_signed, error, quantize_rows_as, x, scale, zero_point, q, q_stride, error)
}

void quantize_columns(const KvValues& x, const float* scale, const float* zero_point, bool is_signed, std::uint8_t* q,
                      std::size_t q_stride, float* error) {
    HETERO_KV_DISPATCH(x.type, is_signed, error, quantize_columns_as, x, scale, zero_point, q, q_stride, error)
}

bool dequantize_rows(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                     const float* zero_point, const KvOutput& x, float* error) {
    HETERO_KV_DISPATCH(x.type, is_signed, error, dequantize_as, q, q_stride, scale, zero_point, false, x, error)
}

bool dequantize_columns(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                        const float* zero_point, const KvOutput& x, float* error) {
    HETERO_KV_DISPATCH(x.type, is_signed, error, dequantize_as, q, q_stride, scale, zero_point, true, x, error)
}

#undef HETERO_KV_DISPATCH
#undef HETERO_KV_CALL

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
