// exp and tanh on 16 lanes, and what all kernels use. Polynomials: Cephes (Moshier), expf and tanhf,
// https://www.netlib.org/cephes/ Included by generic.h, once per instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

// std::min would not have internal linkage.
HETERO_INLINE std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }

// Asks for bytes that are read soon. They may lie past the end of what there is: they are not touched.
HETERO_INLINE void prefetch(const void* p, std::size_t bytes, std::size_t ahead = 0) {
    const auto address = reinterpret_cast<std::uintptr_t>(p) + ahead;
    for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(address + i));
}

// The same, of what is read once and had better not displace anything.
HETERO_INLINE void prefetch_once(const void* p, std::size_t bytes, std::size_t ahead) {
    const auto address = reinterpret_cast<std::uintptr_t>(p) + ahead;
    for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(address + i), 0, 0);
}

// exp(x) = mantissa * 2^power, mantissa in [0.7, 1.5], for |x| < 1000; the mantissa is NaN where x is. Relative error
// below 2 * 2^-24. Of N at once, step by step for all: they do not wait for one another.
template <std::size_t N>
struct Exp {
    F32x16 mantissa[N];
    I32x16 power[N];
};

template <std::size_t N>
HETERO_INLINE Exp<N> exp_parts(const F32x16 (&x)[N]) {
    F32x16 n[N], r[N], p[N];
    Exp<N> out;
    const auto each = [](auto step) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (std::size_t i = 0; i < N; ++i) step(i);
    };
    each([&](std::size_t i) { n[i] = to_float(round_to_int(x[i] * splat(1.44269504088896341F))); });
    each([&](std::size_t i) { r[i] = fma(n[i], splat(-0.693359375F), x[i]); });  // ln 2 in two parts
    each([&](std::size_t i) { r[i] = fma(n[i], splat(2.12194440e-4F), r[i]); });
    each([&](std::size_t i) { p[i] = fma(splat(1.9875691500e-4F), r[i], splat(1.3981999507e-3F)); });
    each([&](std::size_t i) { p[i] = fma(p[i], r[i], splat(8.3334519073e-3F)); });
    each([&](std::size_t i) { p[i] = fma(p[i], r[i], splat(4.1665795894e-2F)); });
    each([&](std::size_t i) { p[i] = fma(p[i], r[i], splat(1.6666665459e-1F)); });
    each([&](std::size_t i) { p[i] = fma(p[i], r[i], splat(5.0000001201e-1F)); });
    each([&](std::size_t i) { out.mantissa[i] = fma(p[i] * r[i], r[i], r[i]) + splat(1.0F); });
    each([&](std::size_t i) { out.power[i] = round_to_int(n[i]); });
    return out;
}

// Correct over the whole range: 0 below -104, infinity above 89, exp(0) = 1 exactly.
template <std::size_t N>
HETERO_INLINE void exp(F32x16 (&x)[N]) {
#pragma GCC unroll 16
    for (F32x16& v : x) v = min(splat(89.0F), max(splat(-104.0F), v));
    const Exp<N> e = exp_parts(x);
#pragma GCC unroll 16
    for (std::size_t i = 0; i < N; ++i) x[i] = times_pow2(e.mantissa[i], e.power[i]);
}
HETERO_INLINE F32x16 exp(F32x16 x) {
    F32x16 one[1] = {x};
    exp(one);
    return one[0];
}

HETERO_INLINE F32x16 tanh(F32x16 x) {
    const F32x16 magnitude = abs(x), square = x * x;
    F32x16 p = splat(-5.70498872745e-3F);
    p = fma(p, square, splat(2.06390887954e-2F));
    p = fma(p, square, splat(-5.37397155531e-2F));
    p = fma(p, square, splat(1.33314422036e-1F));
    p = fma(p, square, splat(-3.33332819422e-1F));
    const F32x16 small = fma(p * square, x, x);
    const F32x16 large = splat(1.0F) - splat(2.0F) / (exp(magnitude + magnitude) + splat(1.0F));
    return where_less(magnitude, splat(0.625F), small, copy_sign(large, x));
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
