// exp and tanh on 16 lanes, and what all kernels use. Polynomials: Cephes (Moshier), expf and tanhf, https://www.netlib.org/cephes/
// Included by generic.h, once per instruction set.
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
// below 2 * 2^-24.
struct Exp {
    F32x16 mantissa;
    I32x16 power;
};

HETERO_INLINE Exp exp_parts(F32x16 x) {
    const I32x16 n = round_to_int(x * splat(1.44269504088896341F));
    const F32x16 nf = to_float(n);
    F32x16 r = fma(nf, splat(-0.693359375F), x);  // ln 2 in two parts
    r = fma(nf, splat(2.12194440e-4F), r);
    F32x16 p = splat(1.9875691500e-4F);
    p = fma(p, r, splat(1.3981999507e-3F));
    p = fma(p, r, splat(8.3334519073e-3F));
    p = fma(p, r, splat(4.1665795894e-2F));
    p = fma(p, r, splat(1.6666665459e-1F));
    p = fma(p, r, splat(5.0000001201e-1F));
    return {fma(p * r, r, r) + splat(1.0F), n};
}

// Correct over the whole range: 0 below -104, infinity above 89, exp(0) = 1 exactly.
HETERO_INLINE F32x16 exp(F32x16 x) {
    const Exp e = exp_parts(min(splat(89.0F), max(splat(-104.0F), x)));
    return times_pow2(e.mantissa, e.power);
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
