// Block formats of ggml (ggml-common.h for the layouts, ggml-quants.c for what they mean). Every value is computed in
// f32 with exactly the operations written here, in this order and never fused, so that all backends agree bit for bit.
#include "kernels/ref/half.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {
namespace {

using Byte = std::uint8_t;

float half_at(const Byte* p) { return f16_to_f32(load<std::uint16_t>(p)); }

// Element j of the first 16 is the low nibble of qs[j], element 16 + j the high one.
int nibble(const Byte* qs, int j) { return j < 16 ? qs[j] & 0xf : qs[j - 16] >> 4; }

void q8_0(const Byte* b, float* y) {
    const float d = half_at(b);
    for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(static_cast<std::int8_t>(b[2 + j])) * d;
}

void q4_0(const Byte* b, float* y) {
    const float d = half_at(b);
    for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(nibble(b + 2, j) - 8) * d;
}

void q4_1(const Byte* b, float* y) {
    const float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(nibble(b + 4, j)) * d + m;
}

int five_bits(std::uint32_t high, const Byte* qs, int j) {
    return nibble(qs, j) | static_cast<int>((high >> j) & 1) << 4;
}

void q5_0(const Byte* b, float* y) {
    const float d = half_at(b);
    const auto high = load<std::uint32_t>(b + 2);
    for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(five_bits(high, b + 6, j) - 16) * d;
}

void q5_1(const Byte* b, float* y) {
    const float d = half_at(b), m = half_at(b + 2);
    const auto high = load<std::uint32_t>(b + 4);
    for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(five_bits(high, b + 8, j)) * d + m;
}

void iq4_nl(const Byte* b, float* y) {
    static constexpr std::int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                1,    13,   25,  38,  53,  69,  89,  113};
    const float d = half_at(b);
    for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(kValues[nibble(b + 2, j)]);
}

void q2_k(const Byte* b, float* y) {
    const Byte* scales = b;
    const Byte* qs = b + 16;
    const float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int j = 0; j < 256; ++j) {
        const int half = j / 128, plane = j / 32 % 4;  // 32 bytes hold 4 planes of 2 bits
        const Byte scale = scales[j / 16];
        const int q = (qs[32 * half + j % 32] >> (2 * plane)) & 3;
        const float dl = d * static_cast<float>(scale & 0xf), ml = dmin * static_cast<float>(scale >> 4);
        y[j] = dl * static_cast<float>(q) - ml;
    }
}

// 16 six-bit scales in 12 bytes: low 4 bits in bytes 0..7 (two a byte), high 2 bits in bytes 8..11 (four a byte).
int q3_k_scale(const Byte* s, int i) {
    const int low = i < 8 ? s[i] & 0xf : s[i - 8] >> 4;
    const int high = (s[8 + i % 4] >> (2 * (i / 4))) & 3;
    return low | high << 4;
}

void q3_k(const Byte* b, float* y) {
    const Byte* hmask = b;
    const Byte* qs = b + 32;
    const Byte* scales = b + 96;
    const float d = half_at(b + 108);
    for (int j = 0; j < 256; ++j) {
        const int half = j / 128, plane = j / 32 % 4;
        const int low = (qs[32 * half + j % 32] >> (2 * plane)) & 3;
        const bool high = (hmask[j % 32] >> (j / 32)) & 1;
        const float dl = d * static_cast<float>(q3_k_scale(scales, j / 16) - 32);
        y[j] = dl * static_cast<float>(low - (high ? 0 : 4));
    }
}

struct ScaleMin {
    int scale, min;
};

// 8 six-bit scales and mins in 12 bytes.
ScaleMin k4_scale_min(const Byte* s, int i) {
    if (i < 4) return {s[i] & 63, s[i + 4] & 63};
    return {(s[i + 4] & 0xf) | (s[i - 4] >> 6) << 4, (s[i + 4] >> 4) | (s[i] >> 6) << 4};
}

void q4_k(const Byte* b, float* y) {
    const Byte* qs = b + 16;
    const float d = half_at(b), dmin = half_at(b + 2);
    for (int j = 0; j < 256; ++j) {
        const ScaleMin sm = k4_scale_min(b + 4, j / 32);
        const Byte packed = qs[32 * (j / 64) + j % 32];
        const int q = j / 32 % 2 ? packed >> 4 : packed & 0xf;
        y[j] = d * static_cast<float>(sm.scale) * static_cast<float>(q) - dmin * static_cast<float>(sm.min);
    }
}

void q5_k(const Byte* b, float* y) {
    const Byte* qh = b + 16;
    const Byte* qs = b + 48;
    const float d = half_at(b), dmin = half_at(b + 2);
    for (int j = 0; j < 256; ++j) {
        const ScaleMin sm = k4_scale_min(b + 4, j / 32);
        const Byte packed = qs[32 * (j / 64) + j % 32];
        const int low = j / 32 % 2 ? packed >> 4 : packed & 0xf;
        const int q = low + (((qh[j % 32] >> (j / 32)) & 1) << 4);
        y[j] = d * static_cast<float>(sm.scale) * static_cast<float>(q) - dmin * static_cast<float>(sm.min);
    }
}

void q6_k(const Byte* b, float* y) {
    const Byte* qh = b + 128;
    const Byte* scales = b + 192;
    const float d = half_at(b + 208);
    for (int j = 0; j < 256; ++j) {
        const int half = j / 128, plane = j / 32 % 4;
        const Byte packed = b[64 * half + j % 64];
        const int low = plane < 2 ? packed & 0xf : packed >> 4;
        const int high = (qh[32 * half + j % 32] >> (2 * plane)) & 3;
        const float scale = static_cast<float>(static_cast<std::int8_t>(scales[j / 16]));
        y[j] = d * scale * static_cast<float>((low | high << 4) - 32);
    }
}

template <void (*Block)(const Byte*, float*)>
void blocks(DType type, const Byte* src, float* dst, std::size_t n) {
    const DTypeInfo& info = dtype_info(type);
    for (std::size_t i = 0; i + info.block_elems <= n; i += info.block_elems, src += info.block_bytes)
        Block(src, dst + i);
}

template <class T>
void plain(const Byte* src, float* dst, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) dst[i] = static_cast<float>(load<T>(src + i * sizeof(T)));
}

}  // namespace

void dequantize(DType type, const void* src, float* dst, std::size_t n) {
    const auto* bytes = static_cast<const Byte*>(src);
    switch (type) {
        case DType::f32:
            if (n > 0) std::memcpy(dst, src, n * sizeof(float));
            return;
        case DType::f16:
            for (std::size_t i = 0; i < n; ++i) dst[i] = half_at(bytes + 2 * i);
            return;
        case DType::bf16:
            for (std::size_t i = 0; i < n; ++i) dst[i] = bf16_to_f32(load<std::uint16_t>(bytes + 2 * i));
            return;
        case DType::i8:
            return plain<std::int8_t>(bytes, dst, n);
        case DType::u8:
            return plain<std::uint8_t>(bytes, dst, n);
        case DType::i32:
            return plain<std::int32_t>(bytes, dst, n);
        case DType::q8_0:
            return blocks<q8_0>(type, bytes, dst, n);
        case DType::q4_0:
            return blocks<q4_0>(type, bytes, dst, n);
        case DType::q4_1:
            return blocks<q4_1>(type, bytes, dst, n);
        case DType::q5_0:
            return blocks<q5_0>(type, bytes, dst, n);
        case DType::q5_1:
            return blocks<q5_1>(type, bytes, dst, n);
        case DType::q2_k:
            return blocks<q2_k>(type, bytes, dst, n);
        case DType::q3_k:
            return blocks<q3_k>(type, bytes, dst, n);
        case DType::q4_k:
            return blocks<q4_k>(type, bytes, dst, n);
        case DType::q5_k:
            return blocks<q5_k>(type, bytes, dst, n);
        case DType::q6_k:
            return blocks<q6_k>(type, bytes, dst, n);
        case DType::iq4_nl:
            return blocks<iq4_nl>(type, bytes, dst, n);
        case DType::count_:
            break;
    }
}

}  // namespace hetero::kernels::ref
