// Norm, rotary embedding, activation and conversions. Included by generic.h, once per instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

// ---- conversions

void f32_to_f16(const float* src, std::uint16_t* dst, std::size_t n) {
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) store_f16(dst + i, load(src + i));
    if (i < n) {
        std::uint16_t last[16];
        store_f16(last, load(src + i, n - i));
        std::memcpy(dst + i, last, (n - i) * sizeof last[0]);
    }
}

void f32_to_bf16(const float* src, std::uint16_t* dst, std::size_t n) {
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) store_bf16(dst + i, load(src + i));
    if (i < n) {
        std::uint16_t last[16];
        store_bf16(last, load(src + i, n - i));
        std::memcpy(dst + i, last, (n - i) * sizeof last[0]);
    }
}

void f16_to_f32(const std::uint16_t* src, float* dst, std::size_t n) {
    dequantize_row<F16>(reinterpret_cast<const Byte*>(src), dst, n);
}

void bf16_to_f32(const std::uint16_t* src, float* dst, std::size_t n) {
    dequantize_row<BF16>(reinterpret_cast<const Byte*>(src), dst, n);
}

// ---- norm

HETERO_INLINE double sum(F64x16 sums) {
    double lanes[16];
    store(lanes, sums);
    for (int width = 8; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    return lanes[0];
}

// 1 / sqrt(mean + eps) of n squares.
HETERO_INLINE F32x16 inverse_root(F64x16 squares, std::size_t n, float eps) {
    const double mean = sum(squares) / static_cast<double>(n) + static_cast<double>(eps);
    const double root = square_root(mean);
    return splat(static_cast<float>(1 / root));
}

void rms_norm(const float* x, const float* w, float* y, std::size_t n, float eps) {
    F64x16 squares = zero_f64();
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) squares = add_square(squares, load(x + i));
    if (i < n) squares = add_square(squares, load(x + i, n - i));
    const F32x16 inverse = inverse_root(squares, n, eps);
    for (i = 0; i + 16 <= n; i += 16) store(y + i, load(x + i) * inverse * load(w + i));
    if (i < n) store(y + i, load(x + i, n - i) * inverse * load(w + i, n - i), n - i);
}

void layer_norm(const float* x, const float* w, const float* b, float* y, std::size_t n, float eps) {
    F64x16 sums = zero_f64(), squares = zero_f64();
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) sums = add_wide(sums, load(x + i));
    if (i < n) sums = add_wide(sums, load(x + i, n - i));
    const F32x16 mean = splat(static_cast<float>(sum(sums) / static_cast<double>(n)));
    for (i = 0; i + 16 <= n; i += 16) squares = add_square(squares, load(x + i) - mean);
    if (i < n) squares = add_square(squares, where_between(0, n - i, load(x + i, n - i) - mean, zero()));
    const F32x16 inverse = inverse_root(squares, n, eps);
    for (i = 0; i + 16 <= n; i += 16) store(y + i, (load(x + i) - mean) * inverse * load(w + i) + load(b + i));
    if (i < n) {
        const std::size_t m = n - i;
        store(y + i, (load(x + i, m) - mean) * inverse * load(w + i, m) + load(b + i, m), m);
    }
}

// ---- rotary embedding: exactly the scalar operations

HETERO_INLINE void rotate(F32x16 a, F32x16 b, F32x16 cos, F32x16 sin, F32x16& first, F32x16& second) {
    first = a * cos - b * sin;
    second = b * cos + a * sin;
}

void rope_half_split(const float* src, float* dst, const float* cos, const float* sin, std::size_t n) {
    std::size_t i = 0;
    F32x16 first, second;
    for (; i + 16 <= n; i += 16) {
        rotate(load(src + i), load(src + n + i), load(cos + i), load(sin + i), first, second);
        store(dst + i, first);
        store(dst + n + i, second);
    }
    if (i < n) {
        const std::size_t m = n - i;
        rotate(load(src + i, m), load(src + n + i, m), load(cos + i, m), load(sin + i, m), first, second);
        store(dst + i, first, m);
        store(dst + n + i, second, m);
    }
}

constexpr std::size_t kMaxPairs = 512;

// May run in place: pair i is read before dst[i] is written, and the second halves wait in a buffer.
void rope_interleaved(const float* src, float* dst, const float* cos, const float* sin, std::size_t n) {
    float seconds[kMaxPairs];
    std::size_t i = 0;
    F32x16 a, b, first, second;
    for (; i + 16 <= n; i += 16) {
        load_pairs(src + 2 * i, a, b);
        rotate(a, b, load(cos + i), load(sin + i), first, second);
        store(dst + i, first);
        store(seconds + i, second);
    }
    if (i < n) {
        const std::size_t m = n - i;
        float pairs[32] = {};
        std::memcpy(pairs, src + 2 * i, 2 * m * sizeof(float));
        load_pairs(pairs, a, b);
        rotate(a, b, load(cos + i, m), load(sin + i, m), first, second);
        store(dst + i, first, m);
        store(seconds + i, second, m);
    }
    std::memcpy(dst + n, seconds, n * sizeof(float));
}

void rope(const float* src, float* dst, std::size_t n_heads, std::size_t head_dim, const RopeTable& table,
          std::size_t position, RopePairing pairing) {
    const std::size_t n = table.n_pairs;
    const bool interleaved = pairing == RopePairing::interleaved;
    if (interleaved && n > kMaxPairs) return ref::rope(src, dst, n_heads, head_dim, table, position, pairing);
    const float* cos = table.cos + position * n;
    const float* sin = table.sin + position * n;
    for (std::size_t h = 0; h < n_heads; ++h, src += head_dim, dst += head_dim) {
        if (interleaved)
            rope_interleaved(src, dst, cos, sin, n);
        else
            rope_half_split(src, dst, cos, sin, n);
        if (src != dst) std::memcpy(dst + 2 * n, src + 2 * n, (head_dim - 2 * n) * sizeof(float));
    }
}

// ---- activation

// silu(g) * u. With e = exp(-|g|), silu(g) = g / (1 + e) for g >= 0 and g * e / (1 + e) below: neither overflows. The
// power of two in e is applied in thirds, before and after u, so that only the result can become subnormal.
HETERO_INLINE F32x16 silu_times(F32x16 g, F32x16 u) {
    const F32x16 one = splat(1.0F), lowest = splat(-210.0F);  // below it the product is zero for every u
    const F32x16 minus = splat(0.0F) - abs(g);
    const Exp<1> e = exp_parts({max(lowest, minus)});
    const I32x16 third = round_to_int(to_float(e.power[0]) * splat(1.0F / 3));
    const F32x16 scale = pow2(third), rest = pow2(e.power[0] - third - third);
    const F32x16 denominator = one + e.mantissa[0] * scale * scale * rest;
    const F32x16 mantissa = where_less(minus, lowest, zero(), e.mantissa[0]);
    const F32x16 quotient = where_less(g, zero(), g * mantissa, g) / denominator;
    const F32x16 third_of_e = where_less(g, zero(), scale, one);
    return quotient * third_of_e * u * third_of_e * where_less(g, zero(), rest, one);
}

void silu_mul(const float* gate, const float* up, float* y, std::size_t n) {
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) store(y + i, silu_times(load(gate + i), load(up + i)));
    if (i < n) store(y + i, silu_times(load(gate + i, n - i), load(up + i, n - i)), n - i);
}

// x / (1 + exp(-t)), t = 2 sqrt(2 / pi) (x + 0.044715 x^3): the same function as with tanh.
HETERO_INLINE F32x16 gelu_tanh_of(F32x16 x) {
    const F32x16 t = x * fma(x * x, splat(0.07135481282F), splat(1.5957691216F));
    return x / (splat(1.0F) + exp(zero() - t));
}

// x * Phi(x), with erfc after Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: within 1.5e-7.
HETERO_INLINE F32x16 gelu_erf_of(F32x16 x) {
    const F32x16 one = splat(1.0F), z = abs(x) * splat(0.70710678118F);
    const F32x16 t = one / fma(z, splat(0.3275911F), one);
    F32x16 p = splat(1.061405429F);
    p = fma(p, t, splat(-1.453152027F));
    p = fma(p, t, splat(1.421413741F));
    p = fma(p, t, splat(-0.284496736F));
    p = fma(p, t, splat(0.254829592F));
    const F32x16 tail = splat(0.5F) * p * t * exp(zero() - z * z);
    return x * where_less(x, zero(), tail, one - tail);
}

template <F32x16 (*Of)(F32x16)>
HETERO_INLINE void apply(const float* x, float* y, std::size_t n) {
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) store(y + i, Of(load(x + i)));
    if (i < n) store(y + i, Of(load(x + i, n - i)), n - i);
}

void gelu_tanh(const float* x, float* y, std::size_t n) { apply<gelu_tanh_of>(x, y, n); }
void gelu_erf(const float* x, float* y, std::size_t n) { apply<gelu_erf_of>(x, y, n); }

void softcap(float* x, float cap, std::size_t n) {
    const F32x16 c = splat(cap);
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) store(x + i, tanh(load(x + i) / c) * c);
    if (i < n) store(x + i, tanh(load(x + i, n - i) / c) * c, n - i);
}

void add(const float* x, float* y, std::size_t n) {
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) store(y + i, load(y + i) + load(x + i));
    if (i < n) store(y + i, load(y + i, n - i) + load(x + i, n - i), n - i);
}

void mul(const float* x, float* y, std::size_t n) {
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) store(y + i, load(y + i) * load(x + i));
    if (i < n) store(y + i, load(y + i, n - i) * load(x + i, n - i), n - i);
}

void scale(float* x, float factor, std::size_t n) {
    const F32x16 f = splat(factor);
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) store(x + i, load(x + i) * f);
    if (i < n) store(x + i, load(x + i, n - i) * f, n - i);
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
