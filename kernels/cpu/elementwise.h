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

void rms_norm(const float* x, const float* w, float* y, std::size_t n, float eps) {
    F64x16 sums = zero_f64();
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) sums = add_square(sums, load(x + i));
    if (i < n) sums = add_square(sums, load(x + i, n - i));
    double lanes[16];
    store(lanes, sums);
    for (int width = 8; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    const double mean = lanes[0] / static_cast<double>(n) + static_cast<double>(eps);
    const double root = _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(mean)));
    const F32x16 inverse = splat(static_cast<float>(1 / root));
    for (i = 0; i + 16 <= n; i += 16) store(y + i, load(x + i) * inverse * load(w + i));
    if (i < n) store(y + i, load(x + i, n - i) * inverse * load(w + i, n - i), n - i);
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
    const Exp e = exp_parts(max(lowest, minus));
    const I32x16 third = round_to_int(to_float(e.power) * splat(1.0F / 3));
    const F32x16 scale = pow2(third), rest = pow2(e.power - third - third);
    const F32x16 denominator = one + e.mantissa * scale * scale * rest;
    const F32x16 mantissa = where_less(minus, lowest, zero(), e.mantissa);
    const F32x16 negative = g * mantissa / denominator * scale * u * scale * rest;
    return where_less(g, zero(), negative, g / denominator * u);
}

void silu_mul(const float* gate, const float* up, float* y, std::size_t n) {
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) store(y + i, silu_times(load(gate + i), load(up + i)));
    if (i < n) store(y + i, silu_times(load(gate + i, n - i), load(up + i, n - i)), n - i);
}

void add(const float* x, float* y, std::size_t n) {
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) store(y + i, load(y + i) + load(x + i));
    if (i < n) store(y + i, load(y + i, n - i) + load(x + i, n - i), n - i);
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
