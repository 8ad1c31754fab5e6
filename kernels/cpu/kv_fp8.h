// Rows to 8-bit floats and back, exactly the scalar operations (ref/kv_blocks.cpp). Included by generic.h after
// kv_blocks.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

// A format's codes as numbers (dequantize_row), none a NaN, and the parts that they have.
struct E4m3fn {
    static constexpr float kLowest = -448, kHighest = 448, kHalfUnit = 16, kNoZero = -0.0F;
    static constexpr int kMantissaBits = 3, kBias = 7;
    static constexpr bool kNegativeZero = true;
    static HETERO_INLINE F32x16 get(const std::uint8_t* q) { return load_e4m3fn(q) * splat(256); }
    static HETERO_INLINE bool is_special(std::uint8_t code) { return (code & 127) == 127; }
};
struct E4m3fnuz {
    static constexpr float kLowest = -240, kHighest = 240, kHalfUnit = 8, kNoZero = -0.0F;
    static constexpr int kMantissaBits = 3, kBias = 8;
    static constexpr bool kNegativeZero = false;
    static HETERO_INLINE F32x16 get(const std::uint8_t* q) { return load_e4m3fn(q) * splat(128); }
    static HETERO_INLINE bool is_special(std::uint8_t code) { return code == 128; }
};
struct E5m2 {
    static constexpr float kLowest = -57344, kHighest = 57344, kHalfUnit = 4096, kNoZero = -0.0F;
    static constexpr int kMantissaBits = 2, kBias = 15;
    static constexpr bool kNegativeZero = true;
    static HETERO_INLINE F32x16 get(const std::uint8_t* q) { return load_e5m2(q); }
    static HETERO_INLINE bool is_special(std::uint8_t code) { return (code & 127) >= 124; }
};
template <class F>
HETERO_INLINE auto with_format(Fp8 format, F f) {
    return format == Fp8::e4m3fn ? f(E4m3fn{}) : format == Fp8::e4m3fnuz ? f(E4m3fnuz{}) : f(E5m2{});
}

// Codes of finite v over a scale, not 0, as integers. Adding a power of two whose last place is the quotient's in the
// format, or the smallest unit of subnormal numbers, rounds it; the difference of the bits is the rounded quotient in
// these places, and the power's exponent the rest of the code.
struct Fp8Found {
    F32x16 worst, largest, poison;  // what rounding took away, where Error; quotients; 0 * v
};
template <class Format, bool Error>
HETERO_INLINE I32x16 fp8_codes(F32x16 v, F32x16 scale, Fp8Found& found) {
    constexpr int kDropped = 23 - Format::kMantissaBits;
    const F32x16 magnitude = abs(v), whole = magnitude / scale, quotient = min(whole, splat(Format::kHighest)),
                 normal = max(quotient, splat(__builtin_ldexpf(1, 1 - Format::kBias))),
                 power = power_of_two(normal) * splat(__builtin_ldexpf(1, kDropped)), sum = quotient + power;
    const I32x16 places = bits_of(sum) - bits_of(power),
                 exponent = shift_right<kDropped>(bits_of(power)) -
                            splat_int((127 + 1 - Format::kBias + kDropped) << Format::kMantissaBits),
                 code = places + exponent, sign = shift_right<24>(bits_of(v)) & splat_int(128);
    found.poison = fma(v, zero(), found.poison);  // NaN for infinities and NaN
    found.largest = max(found.largest, whole);
    if (Error) found.worst = max_abs(found.worst, (sum - power) * scale - magnitude);
    return code + (Format::kNegativeZero ? sign : sign & (code + splat_int(127)));
}

template <class T, class Format, bool Error>
HETERO_INLINE void quantize_fp8_row(const Byte* p, std::size_t n, float scale, std::uint8_t* q, Fp8Found& found) {
    const F32x16 s = splat(scale);
    std::size_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
        I32x16 k[4];
#pragma GCC unroll 4
        for (std::size_t j = 0; j < 4; ++j)
            k[j] = fp8_codes<Format, Error>(T::get(p + (i + j * kLanes) * T::kBytes), s, found);
        store_codes<false, 0, 4>(q + i, k);
    }
    for (; i < n; i += kLanes) {
        const std::size_t left = n - i;
        const F32x16 v = left < kLanes ? get<T>(p + i * T::kBytes, left) : T::get(p + i * T::kBytes);
        const I32x16 k = fp8_codes<Format, Error>(v, s, found);
        std::uint8_t last[kLanes];
        store_codes<false, 0, 1>(last, &k);
        std::memcpy(q + i, last, left < kLanes ? left : kLanes);
    }
}

// Sixteen rows at a time; those with a scale of 0 or a value that is not finite are left to the scalar operation. The
// error is measured of rows where it may be the largest: half a unit in the last place of the largest number, and what
// f32 rounds; or more, where values lie beyond that number.
template <class T, class Format, std::size_t N>
void quantize_fp8_as(Fp8 format, const KvValues& block, const float* scale, std::uint8_t* q, std::size_t q_stride,
                     float* error) {
    constexpr float kMost = Format::kHalfUnit + Format::kHighest * 0x1p-20F;
    const KvValues x = of_length<N>(block);
    float worst = error != nullptr ? *error : __builtin_huge_valf();
    for (std::size_t first = 0; first < x.rows; first += kLanes, scale += kLanes, q += kLanes * q_stride) {
        const std::size_t rows = smaller(x.rows - first, kLanes);
        F32x16 poison = zero();
        float most = worst;
        bool exact = true;
        for (std::size_t r = 0; r < rows; ++r) {
            const Byte* p = row_of<T>(x, first + r);
            prefetch(p, x.n * T::kBytes, kReadAhead);
            exact &= scale[r] != 0;
            Fp8Found found{zero(), zero(), zero()};
            bool measured = scale[r] * kMost > most;
            if (!measured) {
                quantize_fp8_row<T, Format, false>(p, x.n, scale[r], q + r * q_stride, found);
                measured = error != nullptr && any_greater(found.largest, splat(Format::kHighest));
            }
            if (measured) {
                quantize_fp8_row<T, Format, true>(p, x.n, scale[r], q + r * q_stride, found);
                raise(&most, found.worst);
            }
            poison = poison + found.poison;
        }
        if (__builtin_expect(exact && sum(poison) == 0, 1)) {
            worst = most;
        } else {
            ref::quantize_fp8(format, {x.type, row_of<T>(x, first), rows, x.stride, x.n}, scale, q, q_stride,
                              error != nullptr ? &worst : nullptr);
        }
    }
    if (error != nullptr) *error = worst;
}

void quantize_fp8(Fp8 format, const KvValues& x, const float* scale, std::uint8_t* q, std::size_t q_stride,
                  float* error) {
    with_type(x.type, [&](auto type) {
        with_format(format, [&](auto numbers) {
            with_length(x.n, [&](auto length) {
                quantize_fp8_as<decltype(type), decltype(numbers), decltype(length)::value>(format, x, scale, q,
                                                                                            q_stride, error);
            });
        });
    });
}

template <class Format>
bool any_special(const std::uint8_t* q, std::size_t n) {
    std::uint8_t any = 0;
    for (std::size_t i = 0; i < n; ++i) any |= static_cast<std::uint8_t>(Format::is_special(q[i]));
    return any != 0;
}

bool dequantize_fp8(Fp8 format, const std::uint8_t* q, std::size_t q_stride, const float* scale, const KvOutput& x,
                    float* error) {
    return with_type(x.type, [&](auto type) {
        return with_format(format, [&](auto numbers) {
            using Format = decltype(numbers);
            for (std::size_t row = 0; row < x.rows; ++row)
                if (any_special<Format>(q + row * q_stride, x.n))
                    return ref::dequantize_fp8(format, q, q_stride, scale, x, error);
            return with_length(x.n, [&](auto length) {
                return dequantize_as<decltype(type), decltype(length)::value, Format, false>(q, q_stride, scale,
                                                                                             nullptr, x, error);
            });
        });
    });
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
