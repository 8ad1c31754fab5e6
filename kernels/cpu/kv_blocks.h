// Blocks of the KV state to codes and back, exactly the scalar operations (ref/kv_blocks.cpp). Codes are packed as they
// are stored, so that a block crosses memory once. Included by generic.h after kv_extremes.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

struct Yes {
    static constexpr bool value = true;
};
struct No {
    static constexpr bool value = false;
};

// The scales of 16 values. A product with `low` is nearer to zero than the quotient as f32 rounds it, one with `high`
// further away; where codes are Short (quantize_short), both are 1 / scale as f32 rounds it. A scale of 0 has 0.
struct Scales {
    F32x16 scale, low, high, zero_point;
};
HETERO_INLINE F32x16 reciprocal_of(F32x16 scale) {
    const F32x16 tiny = splat(1.4e-45F);  // the smallest number: a scale below it is 0
    return where_less(scale, tiny, zero(), splat(1) / where_less(scale, tiny, splat(1), scale));
}
template <bool Short>
HETERO_INLINE Scales scales_of(F32x16 scale, F32x16 zero_point) {
    const F32x16 inverse = reciprocal_of(scale);  // it and the quotient are off by 2^-24 each
    if (Short) return {scale, inverse, inverse, zero_point};
    return {scale, inverse * splat(1 - 0x1p-22F), inverse * splat(1 + 0x1p-22F), zero_point};
}
HETERO_INLINE F32x16 exact_quotient(F32x16 d, F32x16 scale) {
    const F32x16 tiny = splat(1.4e-45F);
    return where_less(scale, tiny, zero(), d / where_less(scale, tiny, splat(1), scale));
}
// 1 / scale is subnormal or infinite, or the scale itself is subnormal.
HETERO_INLINE bool needs_division(float scale) { return scale != 0 && !(scale > 0x1p-120F && scale < 0x1p120F); }
HETERO_INLINE bool any_needs_division(F32x16 scale) {
    const F32x16 low = splat(0x1.000002p-120F), high = splat(0x1.FFFFFEp119F);
    return any_greater(scale, high) || any_greater(where_less(scale, low, scale, zero()), zero());
}
// At most 11 bits, as an f16 has, and within its range.
HETERO_INLINE bool has_f16_bits(float scale) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &scale, 4);
    return (bits & 0x1FFFU) == 0 && scale >= 0 && scale < 65536 && (scale == 0 || scale >= 0x1p-24F);
}

// The codes of N times 16 differences from the zero, as the low bytes of the bits of what is added to kRounding: by
// products with the reciprocals, one on each side of the quotient. Where these round to different codes, and where
// `divide`, the division decides.
constexpr float kRounding = 0x1.8p23F;
template <std::size_t N>
HETERO_INLINE void round_quotients(const F32x16 (&d)[N], const Scales* by, bool divide, F32x16 (&rounded)[N]) {
    I32x16 differing = splat_int(0);
#pragma GCC unroll 4
    for (std::size_t j = 0; j < N; ++j) {
        rounded[j] = fma(d[j], by[j].low, splat(kRounding));
        differing = or_differing(differing, rounded[j], fma(d[j], by[j].high, splat(kRounding)));
    }
    if (__builtin_expect(!divide && !any_set(differing), 1)) return;
#pragma GCC unroll 4
    for (std::size_t j = 0; j < N; ++j) rounded[j] = exact_quotient(d[j], by[j].scale) + splat(kRounding);
}

// The same where `low` is 1 / scale as f32 rounds it, and `off`, what rounding took away, in units of the scale: a
// product differs from the quotient by less than 2^-14, so that the division decides where that is near a half.
template <std::size_t N>
HETERO_INLINE void round_quotients(const F32x16 (&d)[N], const Scales* by, F32x16 (&rounded)[N], F32x16 (&off)[N]) {
    F32x16 furthest = zero();
#pragma GCC unroll 4
    for (std::size_t j = 0; j < N; ++j) {
        rounded[j] = fma(d[j], by[j].low, splat(kRounding));
        off[j] = fma(d[j], by[j].low, splat(kRounding) - rounded[j]);
        furthest = max_abs(furthest, off[j]);
    }
    if (__builtin_expect(!any_greater(furthest, splat(0.5F - 0x1p-14F)), 1)) return;
#pragma GCC unroll 4
    for (std::size_t j = 0; j < N; ++j) {
        const F32x16 quotient = exact_quotient(d[j], by[j].scale);
        rounded[j] = quotient + splat(kRounding);
        off[j] = quotient - (rounded[j] - splat(kRounding));
    }
}

template <bool Signed, bool Error, int N>
HETERO_INLINE void quantize_vectors(const F32x16* v, const Scales* by, bool divide, std::uint8_t* q, F32x16& worst) {
    F32x16 d[N], rounded[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) d[j] = v[j] - by[j].zero_point;
    round_quotients(d, by, divide, rounded);
    store_low_bytes<Signed, N>(q, rounded);
    if (!Error) return;
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j)
        worst = max_abs(worst, (rounded[j] - splat(kRounding)) * by[j].scale + by[j].zero_point - v[j]);
}

// The same where value and scale have at most 11 bits and there is no zero. A quotient of such, x = X 2^a over s = S
// 2^b, is the middle t of two integers or at least 2^-12.1 away from it: (x / s - t) 2 S is a multiple of 2^(a - b +
// 1), or of 1, and a - b is not small where the quotient is near 1/2 or more. The product is off by less than 2^-15. So
// rounding it first to a multiple of 2^-14, which adding 768 does, gives a middle where there is one, and the right
// side elsewhere.
template <bool Signed, bool Error, int N>
HETERO_INLINE void quantize_short(const F32x16* v, const Scales* by, std::uint8_t* q, F32x16& worst) {
    constexpr int above = 768;
    I32x16 k[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
        k[j] = round_to_int(fma(v[j], by[j].low, splat(above)));
        if (!Error) continue;
        const F32x16 code = to_float(k[j]) - splat(above);
        worst = max_abs(worst, fma(code, zero() - by[j].scale, v[j]));  // exact but for the sum
    }
    store_codes<Signed, above, N>(q, k);
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
HETERO_INLINE F32x16 largest_errors(F32x16 scale, F32x16 zero_point) {
    const F32x16 most = scale * splat(0.5F) + (scale * splat(256) + abs(zero_point)) * splat(0x1p-21F);
    return where_less(scale, splat(1.4e-45F), splat(__builtin_huge_valf()), most);
}

// Up to 16 rows, whose scales and zeros (where Zero) are known; what lies `ahead` bytes further is fetched. The error
// is measured where it may be larger than `worst`: of few rows.
template <class T, bool Signed, bool Zero, bool Short>
HETERO_INLINE void quantize_batch(const KvValues& x, std::size_t first, std::size_t rows, const float* scale,
                                  const float* zero_point, std::uint8_t* q, std::size_t q_stride, float& worst,
                                  std::size_t ahead) {
    const std::size_t row_bytes = x.n * T::kBytes;
    const auto some = [&](const float* from) { return rows < kLanes ? load(from, rows) : load(from); };
    const Scales all = scales_of<Short>(some(scale), Zero ? some(zero_point) : zero());
    const F32x16 bounds = where_between(0, rows, largest_errors(all.scale, all.zero_point), zero());
    const bool may_raise = any_greater(bounds, splat(worst)), divide = !Short && any_needs_division(all.scale);
    float low[kLanes], high[kLanes], bound[kLanes];
    store(low, all.low);
    store(high, all.high);
    store(bound, bounds);
    for (std::size_t r = 0; r < rows; ++r, q += q_stride) {
        const Byte* p = row_of<T>(x, first + r);
        prefetch_some(p, row_bytes, ahead);
        const Scales one{splat(scale[r]), splat(low[r]), splat(high[r]), splat(Zero ? zero_point[r] : 0)};
        F32x16 found = zero();
        if (__builtin_expect(may_raise && bound[r] > worst, 0)) {
            quantize_row<T, Signed, true, Short>(p, x.n, one, divide, q, found);
            raise(&worst, found);
        } else {
            quantize_row<T, Signed, false, Short>(p, x.n, one, divide, q, found);
        }
    }
}

template <class T, bool Signed>
void quantize_rows_as(const KvValues& x, const float* scale, const float* zero_point, std::uint8_t* q,
                      std::size_t q_stride, float* error) {
    float worst = error != nullptr ? *error : __builtin_huge_valf();
    for (std::size_t first = 0; first < x.rows; first += kLanes, q += kLanes * q_stride) {
        const std::size_t rows = x.rows - first < kLanes ? x.rows - first : kLanes;
        const float* s = scale + first;
        bool is_short = T::kBytes == 2 && zero_point == nullptr;
        for (std::size_t r = 0; r < rows; ++r) is_short &= has_f16_bits(s[r]);
        if (is_short) {
            quantize_batch<T, Signed, false, T::kBytes == 2>(x, first, rows, s, nullptr, q, q_stride, worst, 0);
        } else if (zero_point == nullptr) {
            quantize_batch<T, Signed, false, false>(x, first, rows, s, nullptr, q, q_stride, worst, 0);
        } else {
            quantize_batch<T, Signed, true, false>(x, first, rows, s, zero_point + first, q, q_stride, worst, 0);
        }
    }
    if (error != nullptr) *error = worst;
}

template <class T, std::size_t N, bool Zero>
bool encode_rows_as(const KvValues& block, int levels, std::uint16_t* scale, std::uint16_t* zero_point, std::uint8_t* q,
                    std::size_t q_stride, float* error, bool streaming) {
    const KvValues x = of_length<N>(block);
    const std::size_t batch = batch_rows(x.n * T::kBytes), ahead = 2 * batch * x.stride * T::kBytes;
    RowsOut out(q, q_stride, streaming && q_stride == x.n);
    alignas(64) float low[kBatch], high[kBatch], scales[kBatch], zeros[kBatch];
    float worst = error != nullptr ? *error : __builtin_huge_valf();
    RowExtremes<T, !Zero> found;
    for (std::size_t first = 0; first < x.rows; first += batch) {
        const std::size_t rows = x.rows - first < batch ? x.rows - first : batch;
        found.find(x, first, rows);
        if (!found.finite()) return false;
        found.give(low, high, rows);
        if (!batch_scales<Zero>(low, high, rows, levels, scale + first, scales, Zero ? zero_point + first : nullptr,
                                zeros))
            return false;
        for (std::size_t at = 0; at < rows; at += out.step()) {
            const std::size_t some = rows - at < out.step() ? rows - at : out.step();
            quantize_batch<T, !Zero, Zero, !Zero && T::kBytes == 2>(x, first + at, some, scales + at, zeros + at,
                                                                    out.place(first + at), q_stride, worst, ahead);
            out.add(some);
        }
    }
    out.end();
    if (error != nullptr) *error = worst;
    return true;
}

// Columns with their scales, 64 at a time: their scales stay in registers while some rows pass by, few, so that codes
// leave for memory a little at a time.
constexpr std::size_t kRowsTogether = 4;
constexpr std::size_t kFourVectors = 4 * kLanes, kMostColumns = 16 * kBatch;
struct ColumnScales {
    alignas(64) float scale[kMostColumns], low[kMostColumns], high[kMostColumns], zero_point[kMostColumns];

    template <bool Zero>
    HETERO_INLINE Scales at(std::size_t i) const {
        return {load(scale + i), load(low + i), load(high + i), Zero ? load(zero_point + i) : zero()};
    }
};
template <class T, bool Signed, bool Zero, bool Short, bool Error>
HETERO_INLINE void quantize_fours(const KvValues& x, const ColumnScales& columns, bool divide, RowsOut& out,
                                  std::size_t q_stride, RowsAhead& ahead, F32x16& worst) {
    const std::size_t whole = x.n / kFourVectors * kFourVectors;
    for (std::size_t first = 0; first < x.rows; first += out.step()) {
        const std::size_t rows = smaller(x.rows - first, out.step());
        auto* q = reinterpret_cast<std::uint8_t*>(out.place(first));
        for (std::size_t i = 0; i < whole; i += kFourVectors) {
            Scales by[4];
#pragma GCC unroll 4
            for (std::size_t j = 0; j < 4; ++j) by[j] = columns.at<Zero>(i + j * kLanes);
            for (std::size_t row = 0; row < rows; ++row) {
                const Byte* p = row_of<T>(x, first + row) + i * T::kBytes;
                ahead.fetch(2);
                F32x16 v[4];
#pragma GCC unroll 4
                for (std::size_t j = 0; j < 4; ++j) v[j] = T::get(p + j * kLanes * T::kBytes);
                if (Short) {
                    quantize_short<Signed, Error, 4>(v, by, q + row * q_stride + i, worst);
                } else {
                    quantize_vectors<Signed, Error, 4>(v, by, divide, q + row * q_stride + i, worst);
                }
            }
        }
        for (std::size_t i = whole; i < x.n; i += kLanes) {
            const Scales by = columns.at<Zero>(i);
            for (std::size_t row = 0; row < rows; ++row)
                quantize_last<Signed, true>(get_some<T>(row_of<T>(x, first + row), i, x.n), by, q + row * q_stride + i,
                                            smaller(x.n - i, kLanes), worst);
        }
        out.add(rows);
    }
    out.end();
}

// At most kMostColumns.
template <class T, bool Signed, bool Zero, bool Short>
HETERO_INLINE void quantize_some_columns(const KvValues& x, ColumnScales& columns, std::uint8_t* q,
                                         std::size_t q_stride, float* error, bool streaming, RowsAhead& ahead) {
    F32x16 worst = zero(), most = zero();
    bool divide = false;
    for (std::size_t i = 0; i < x.n; i += kLanes) {
        const Scales by = scales_of<Short>(load(columns.scale + i), Zero ? load(columns.zero_point + i) : zero());
        store(columns.low + i, by.low);
        store(columns.high + i, by.high);
        divide |= !Short && any_needs_division(by.scale);
        most = max(most, largest_errors(by.scale, by.zero_point));
    }
    RowsOut out(q, q_stride, streaming && q_stride == x.n, kRowsTogether);
    if (__builtin_expect(error != nullptr && any_greater(most, splat(*error)), 0)) {
        quantize_fours<T, Signed, Zero, Short, true>(x, columns, divide, out, q_stride, ahead, worst);
    } else {
        quantize_fours<T, Signed, Zero, Short, false>(x, columns, divide, out, q_stride, ahead, worst);
    }
    if (error != nullptr) raise(error, worst);
}

template <class T>
HETERO_INLINE KvValues some_columns(const KvValues& x, std::size_t first) {
    KvValues some = x;
    some.data = row_of<T>(x, 0) + first * T::kBytes;
    some.n = smaller(x.n - first, kMostColumns);
    return some;
}
// What is looked at after these columns: those beside them, or the first of the rows that follow.
template <class T>
HETERO_INLINE RowsAhead next_columns(const KvValues& x, std::size_t first) {
    const bool beside = x.n - first > kMostColumns;
    const std::size_t begin = beside ? first + kMostColumns : 0, n = smaller(x.n - begin, kMostColumns);
    return {row_of<T>(x, beside ? 0 : x.rows) + begin * T::kBytes, x.rows, x.stride * T::kBytes, n * T::kBytes};
}

template <class T, bool Signed, bool Zero, bool Short>
HETERO_INLINE void quantize_columns_as(const KvValues& x, const float* scale, const float* zero_point, std::uint8_t* q,
                                       std::size_t q_stride, float* error) {
    ColumnScales columns;
    for (std::size_t first = 0; first < x.n; first += kMostColumns) {
        const KvValues some = some_columns<T>(x, first);
        for (std::size_t i = 0; i < some.n; i += kLanes) {
            store(columns.scale + i, get_some<AsF32>(reinterpret_cast<const Byte*>(scale + first), i, some.n));
            if (Zero)
                store(columns.zero_point + i,
                      get_some<AsF32>(reinterpret_cast<const Byte*>(zero_point + first), i, some.n));
        }
        RowsAhead ahead;
        quantize_some_columns<T, Signed, Zero, Short>(some, columns, q + first, q_stride, error, false, ahead);
    }
}

// As many columns at once as keep a group of tokens in a core's own caches.
template <class T, bool Zero>
bool encode_columns_as(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero_point, std::uint8_t* q,
                       std::size_t q_stride, float* error, bool streaming) {
    ColumnScales columns;
    for (std::size_t first = 0; first < x.n; first += kMostColumns) {
        const KvValues some = some_columns<T>(x, first);
        RowsAhead ahead = next_columns<T>(x, first);
        if (!column_extremes_as<T, !Zero>(some, columns.low, columns.high, ahead, 1)) return false;
        if (!batch_scales<Zero>(columns.low, columns.high, some.n, levels, scale + first, columns.scale,
                                Zero ? zero_point + first : nullptr, columns.zero_point))
            return false;
        quantize_some_columns<T, !Zero, Zero, !Zero && T::kBytes == 2>(some, columns, q + first, q_stride, error,
                                                                       streaming, ahead);
    }
    return true;
}

// What dequantizing finds beside values: what rounding took away, and the largest value. Neither is looked at where it
// cannot matter.
struct Found {
    F32x16 worst, largest;
};
// 16 codes as numbers, their range, and what is added to a product with the scale where there is no zero: -0 keeps the
// sign of a zero.
struct SignedCodes {
    static constexpr float kLowest = -128, kHighest = 127, kNoZero = 0;
    static HETERO_INLINE F32x16 get(const std::uint8_t* q) { return signed_values(bytes_load(q)); }
};
struct UnsignedCodes {
    static constexpr float kLowest = 0, kHighest = 255, kNoZero = 0;
    static HETERO_INLINE F32x16 get(const std::uint8_t* q) { return unsigned_values(bytes_load(q)); }
};
// No value of these codes is larger than this.
template <class Codes>
HETERO_INLINE F32x16 largest_values(F32x16 scale, F32x16 zero_point) {
    const F32x16 low = zero_point + scale * splat(Codes::kLowest), high = zero_point + scale * splat(Codes::kHighest);
    return max_abs(low, high) * splat(1 + 0x1p-20F);
}
template <class T>
HETERO_INLINE bool matters(float largest, const float* error) {
    if (!(largest < T::kBeyond)) return true;
    // Half a unit in the last place of the largest, or of the smallest normal number.
    return error != nullptr && T::kBytes == 2 && T::rounded_away(largest) > *error;
}
template <class T, class Codes>
HETERO_INLINE bool matter(const float* scale, const float* zero_point, std::size_t n, const float* error) {
    F32x16 largest = zero();
    for (std::size_t i = 0; i < n; i += kLanes) {
        const std::size_t left = n - i;
        const auto some = [&](const float* from) { return left < kLanes ? load(from + i, left) : load(from + i); };
        largest = max(largest, largest_values<Codes>(some(scale), zero_point == nullptr ? zero() : some(zero_point)));
    }
    return matters<T>(max_lane(largest), error);
}

template <class T, class Codes, bool ByColumn, bool Checked>
HETERO_INLINE void dequantize_row(const std::uint8_t* q, const float* scale, const float* zero_point, std::size_t n,
                                  Byte* out, Found& found) {
    F32x16 s = splat(ByColumn ? 0 : *scale),
           z = splat(ByColumn || zero_point == nullptr ? Codes::kNoZero : *zero_point);
    const auto value_of = [&](const std::uint8_t* codes) { return Codes::get(codes) * s + z; };
    std::size_t i = 0;
#pragma GCC unroll 8
    for (; i + kLanes <= n; i += kLanes) {
        if (ByColumn) {
            s = load(scale + i);
            if (zero_point != nullptr) z = load(zero_point + i);
        }
        if (i % 64 == 0) prefetch(q + i);
        const F32x16 value = value_of(q + i);
        T::put(out + i * T::kBytes, value);
        if (!Checked) continue;
        found.largest = max_abs(found.largest, value);
        found.worst = max_abs(found.worst, T::get(out + i * T::kBytes) - value);
    }
    if (i == n) return;
    const std::size_t left = n - i;
    std::uint8_t last[kLanes] = {};
    Byte stored[kLanes * T::kBytes];
    std::memcpy(last, q + i, left);
    if (ByColumn) {
        s = load(scale + i, left);
        if (zero_point != nullptr) z = load(zero_point + i, left);
    }
    const F32x16 value = where_between(0, left, value_of(last), zero());
    T::put(stored, value);
    std::memcpy(out + i * T::kBytes, stored, left * T::kBytes);
    found.largest = max_abs(found.largest, value);
    found.worst = max_abs(found.worst, T::get(stored) - value);
}

template <class T, std::size_t N, class Codes, bool ByColumn>
bool dequantize_as(const std::uint8_t* q, std::size_t q_stride, const float* scale, const float* zero_point,
                   const KvOutput& x, float* error) {
    const std::size_t n = N != 0 ? N : x.n, row_bytes = x.stride * T::kBytes;
    Found found{zero(), zero()};
    RowsOut out(x.data, row_bytes, x.streaming && x.stride == n);
    bool checked = ByColumn && matter<T, Codes>(scale, zero_point, n, error);
    for (std::size_t first = 0; first < x.rows; first += out.step()) {
        const std::size_t rows = x.rows - first < out.step() ? x.rows - first : out.step();
        const auto of_row = [&](const float* from, std::size_t row) {
            return ByColumn || from == nullptr ? from : from + first + row;
        };
        if (!ByColumn) checked = matter<T, Codes>(of_row(scale, 0), of_row(zero_point, 0), rows, error);
        Byte* to = out.place(first);
        for (std::size_t row = 0; row < rows; ++row, q += q_stride, to += row_bytes) {
            const float *s = of_row(scale, row), *z = of_row(zero_point, row);
            if (__builtin_expect(checked, 0)) {
                dequantize_row<T, Codes, ByColumn, true>(q, s, z, n, to, found);
            } else {
                dequantize_row<T, Codes, ByColumn, false>(q, s, z, n, to, found);
            }
        }
        if (checked && !ByColumn && error != nullptr) raise(error, found.worst);
        out.add(rows);
    }
    out.end();
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
                 std::size_t q_stride, float* error, bool streaming) {
    if (x.n == 0) return ref::encode_rows(x, levels, scale, zero_point, q, q_stride, error, streaming);
    return with_type(x.type, [&](auto type) {
        using T = decltype(type);
        return with_length(x.n, [&](auto length) {
            constexpr std::size_t n = decltype(length)::value;
            return zero_point == nullptr
                       ? encode_rows_as<T, n, false>(x, levels, scale, nullptr, q, q_stride, error, streaming)
                       : encode_rows_as<T, n, true>(x, levels, scale, zero_point, q, q_stride, error, streaming);
        });
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
            if (is_short) {
                quantize_columns_as<T, kSigned, false, can_be_short>(x, scale, nullptr, q, q_stride, error);
            } else if (zero_point == nullptr) {
                quantize_columns_as<T, kSigned, false, false>(x, scale, nullptr, q, q_stride, error);
            } else {
                quantize_columns_as<T, kSigned, true, false>(x, scale, zero_point, q, q_stride, error);
            }
        };
        is_signed ? run(Yes{}) : run(No{});
    });
}

bool encode_columns(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero_point, std::uint8_t* q,
                    std::size_t q_stride, float* error, bool streaming) {
    return with_type(x.type, [&](auto type) {
        using T = decltype(type);
        return zero_point == nullptr
                   ? encode_columns_as<T, false>(x, levels, scale, nullptr, q, q_stride, error, streaming)
                   : encode_columns_as<T, true>(x, levels, scale, zero_point, q, q_stride, error, streaming);
    });
}

template <bool ByColumn>
HETERO_INLINE bool dequantize_codes(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                                    const float* zero_point, const KvOutput& x, float* error) {
    return with_type(x.type, [&](auto type) {
        using T = decltype(type);
        return with_length(ByColumn ? 0 : x.n, [&](auto length) {
            constexpr std::size_t n = decltype(length)::value;
            return is_signed ? dequantize_as<T, n, SignedCodes, ByColumn>(q, q_stride, scale, zero_point, x, error)
                             : dequantize_as<T, n, UnsignedCodes, ByColumn>(q, q_stride, scale, zero_point, x, error);
        });
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
    with_type(x.type, [&](auto type) { max_difference_as<decltype(type)>(x, y, error); });
}

// 16-bit floats; those of 32 bits are rare here.
bool copy_finite(const KvValues& x, void* y, std::size_t y_stride) {
    if (x.type == DType::f32) return ref::copy_finite(x, y, y_stride);
    constexpr std::size_t line = 2 * kWords;
    const auto* in = static_cast<const Byte*>(x.data);
    auto* out = static_cast<Byte*>(y);
    const bool streams = (reinterpret_cast<std::uintptr_t>(out) | 2 * y_stride) % line == 0;
    const std::size_t tail = x.n % kWords, whole = 2 * (x.n - tail);
    I16x32 largest = splat_i16(0);
    for (std::size_t row = 0; row < x.rows; ++row, in += 2 * x.stride, out += 2 * y_stride) {
        for (std::size_t at = 0; at < whole; at += line) {
            largest = max(largest, without_sign(load_i16(in + at)));
            if (streams) {
                stream_line(out + at, in + at);
            } else {
                store_i16(out + at, load_i16(in + at));
            }
        }
        if (tail == 0) continue;
        largest = max(largest, without_sign(load_words(in + whole, tail)));
        std::memcpy(out + whole, in + whole, 2 * tail);
    }
    if (streams) stream_end();
    return largest_word(largest) < (x.type == DType::f16 ? AsF16::kInfinity : AsBf16::kInfinity);
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
