// KV cache to and from 8-bit integers: exactly the scalar operations. Included by generic.h, once per instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

// Nearest integer in [low, high], ties to even; NaN gives low.
HETERO_INLINE U8x16 round_clamped(F32x16 v, F32x16 low, F32x16 high) {
    return narrow(round_to_int(min(max(v, low), high)));
}

// round_clamped(d / s) by the reciprocal. A product differs from the quotient by less than 2^-14 in the range of the
// codes, so that only near the middle of two integers could they be rounded apart: there the division decides.
struct Divisor {
    F32x16 scale, reciprocal, low, high;
};
HETERO_INLINE U8x16 divide_clamped(F32x16 d, const Divisor& by) {
    const F32x16 product = min(max(d * by.reciprocal, by.low), by.high);
    const I32x16 nearest = round_to_int(product);
    if (any_greater(abs(product - to_float(nearest)), splat(0.5F - 0x1p-13F))) {
        return round_clamped(d / by.scale, by.low, by.high);
    }
    return narrow(nearest);
}

// q = round_clamped((x - zero_point) / scale).
HETERO_INLINE void quantize_run(const float* x, float scale, float zero_point, float low, float high, std::uint8_t* q,
                                std::size_t n) {
    if (scale == 0) {
        if (n > 0) std::memset(q, 0, n);
        return;
    }
    const F32x16 z = splat(zero_point);
    const Divisor by{splat(scale), splat(1 / scale), splat(low), splat(high)};
    const bool by_reciprocal = scale > 0x1p-120F && scale < 0x1p120F;  // neither it nor 1 / scale is subnormal
    std::size_t i = 0;
    if (by_reciprocal) {
        for (; i + 16 <= n; i += 16) bytes_store(q + i, divide_clamped(load(x + i) - z, by));
    } else {
        for (; i + 16 <= n; i += 16) bytes_store(q + i, round_clamped((load(x + i) - z) / by.scale, by.low, by.high));
    }
    if (i < n) {
        const U8x16 last = round_clamped((load(x + i, n - i) - z) / by.scale, by.low, by.high);
        std::memcpy(q + i, &last, n - i);
    }
}

void quantize_i8(const float* x, float scale, std::int8_t* q, std::size_t n) {
    quantize_run(x, scale, 0, -127, 127, reinterpret_cast<std::uint8_t*>(q), n);
}

void quantize_u8(const float* x, float scale, float zero_point, std::uint8_t* q, std::size_t n) {
    quantize_run(x, scale, zero_point, 0, 255, q, n);
}

void dequantize_i8(const std::int8_t* q, float scale, float* x, std::size_t n) {
    const auto* bytes = reinterpret_cast<const Byte*>(q);
    const F32x16 s = splat(scale);
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) store(x + i, signed_values(bytes_load(bytes + i)) * s);
    if (i < n) {
        Byte last[16] = {};
        std::memcpy(last, bytes + i, n - i);
        store(x + i, signed_values(bytes_load(last)) * s, n - i);
    }
}

void dequantize_u8(const std::uint8_t* q, float scale, float zero_point, float* x, std::size_t n) {
    const F32x16 s = splat(scale), z = splat(zero_point);
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) store(x + i, unsigned_values(bytes_load(q + i)) * s + z);
    if (i < n) {
        Byte last[16] = {};
        std::memcpy(last, q + i, n - i);
        store(x + i, unsigned_values(bytes_load(last)) * s + z, n - i);
    }
}

bool min_max(const float* x, std::size_t n, float* lowest, float* highest) {
    F32x16 low = splat(x[0]), high = low, poison = zero();  // 0 * x is NaN for infinities and NaN
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const F32x16 v = load(x + i);
        low = min(low, v);
        high = max(high, v);
        poison = fma(v, zero(), poison);
    }
    if (i < n) {
        const F32x16 v = where_between(0, n - i, load(x + i, n - i), splat(x[0]));
        low = min(low, v);
        high = max(high, v);
        poison = fma(v, zero(), poison);
    }
    if (sum(poison) != 0) return false;
    *lowest = min_lane(low);
    *highest = max_lane(high);
    return true;
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
