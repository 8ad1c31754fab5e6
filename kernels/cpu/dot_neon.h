// Dot products of unsigned codes and signed 8-bit activations, four at a time into 32-bit lanes, on Advanced SIMD, or
// with its dot product instructions (FEAT_DotProd). Included after vec_neon.h; interface as in dot_avx2.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

using Words = int32x4_t;
constexpr std::size_t kWordBytes = 16;

HETERO_INLINE Words words_of(U8x16 v) { return vreinterpretq_s32_u8(v); }
HETERO_INLINE U8x16 bytes_of(Words v) { return vreinterpretq_u8_s32(v); }
HETERO_INLINE Words words_load(const std::uint8_t* p) { return words_of(vld1q_u8(p)); }
HETERO_INLINE void words_store(std::uint8_t* p, Words v) { vst1q_u8(p, bytes_of(v)); }
HETERO_INLINE Words words_splat(int x) { return vdupq_n_s32(x); }
HETERO_INLINE Words words_add(Words a, Words b) { return vaddq_s32(a, b); }
HETERO_INLINE Words bytes_minus(Words v, int x) { return words_of(bytes_sub(bytes_of(v), bytes_splat(x))); }
HETERO_INLINE Words low_nibbles(Words v) { return words_of(vandq_u8(bytes_of(v), vdupq_n_u8(0xf))); }
HETERO_INLINE Words high_nibbles(Words v) { return words_of(vshrq_n_u8(bytes_of(v), 4)); }
// Byte i gets 16 where bit i of the 16 bits at p is set.
HETERO_INLINE Words add_high_bits(Words v, const std::uint8_t* p) {
    std::uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return words_of(vorrq_u8(bytes_of(v), expand_bits(bits, 16)));
}
HETERO_INLINE Part words_to_float(Words v) { return vcvtq_f32_s32(v); }
HETERO_INLINE Part part_splat(float x) { return vdupq_n_f32(x); }
HETERO_INLINE Part part_mul(Part a, Part b) { return vmulq_f32(a, b); }
HETERO_INLINE Part part_add(Part a, Part b) { return vaddq_f32(a, b); }
HETERO_INLINE Part part_f16(const std::uint8_t* p) { return part_f16(p, 0); }

HETERO_INLINE Words dot_signed(Words sum, U8x16 a, Words b) {
    const int8x16_t x = vreinterpretq_s8_u8(a), y = vreinterpretq_s8_s32(b);
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sum, x, y);
#else
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)));
    const int32x4_t high = vpaddlq_s16(vmull_high_s8(x, y));
    return vaddq_s32(sum, vpaddq_s32(low, high));
#endif
}
// Codes up to 31.
HETERO_INLINE Words dot_narrow(Words sum, Words codes, Words x) { return dot_signed(sum, bytes_of(codes), x); }
// Codes up to 255: taken as code - kWideZero.
constexpr int kWideZero = 128;
HETERO_INLINE Words dot_wide(Words sum, Words codes, Words x) {
    return dot_signed(sum, veorq_u8(bytes_of(codes), vdupq_n_u8(0x80)), x);
}
HETERO_INLINE void add_dot(Words& sum, Words codes, Words x) { sum = dot_wide(sum, codes, x); }

// ---- bytes and numbers of 16 bits (split.h)

HETERO_INLINE Words words_shift_left_8(Words v) { return vshlq_n_s32(v, 8); }
HETERO_INLINE Words bytes_flip(Words v, int bits) { return words_of(bytes_xor(bytes_of(v), bytes_splat(bits))); }

HETERO_INLINE void row_words(const std::uint8_t* p, std::size_t step, Words (&words)[4][kParts]) {
    const auto load = [](const std::uint8_t* row) { return vreinterpretq_u32_u8(vld1q_u8(row)); };
    const auto low = [](uint32x4_t x, uint32x4_t y) {
        return vreinterpretq_s32_u64(vzip1q_u64(vreinterpretq_u64_u32(x), vreinterpretq_u64_u32(y)));
    };
    const auto high = [](uint32x4_t x, uint32x4_t y) {
        return vreinterpretq_s32_u64(vzip2q_u64(vreinterpretq_u64_u32(x), vreinterpretq_u64_u32(y)));
    };
    for (int part = 0; part < kParts; ++part, p += 4 * step) {
        const uint32x4_t r0 = load(p), r1 = load(p + step), r2 = load(p + 2 * step), r3 = load(p + 3 * step);
        const uint32x4_t a = vzip1q_u32(r0, r1), b = vzip2q_u32(r0, r1), c = vzip1q_u32(r2, r3), d = vzip2q_u32(r2, r3);
        words[0][part] = low(a, c);
        words[1][part] = high(a, c);
        words[2][part] = low(b, d);
        words[3][part] = high(b, d);
    }
}
HETERO_INLINE void column_words(const std::uint8_t* p, std::size_t step, Words (&words)[1][kParts]) {
    const U8x16 r0 = bytes_load(p), r1 = bytes_load(p + step);
    const U8x16 r2 = bytes_load(p + 2 * step), r3 = bytes_load(p + 3 * step);
    const auto pairs = [](U8x16 v) { return vreinterpretq_u16_u8(v); };
    const uint16x8_t a = pairs(zip_low(r0, r1)), b = pairs(zip_high(r0, r1));
    const uint16x8_t c = pairs(zip_low(r2, r3)), d = pairs(zip_high(r2, r3));
    words[0][0] = vreinterpretq_s32_u16(vzip1q_u16(a, c));
    words[0][1] = vreinterpretq_s32_u16(vzip2q_u16(a, c));
    words[0][2] = vreinterpretq_s32_u16(vzip1q_u16(b, d));
    words[0][3] = vreinterpretq_s32_u16(vzip2q_u16(b, d));
}
constexpr int kColumnUnits = 1;  // that there is a way to take together

HETERO_INLINE Words even_bytes(Words v) {
    return vreinterpretq_s32_u16(vandq_u16(vreinterpretq_u16_s32(v), vdupq_n_u16(255)));
}
HETERO_INLINE Words odd_bytes(Words v) { return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(v), 8)); }
HETERO_INLINE Words dot_halves(Words sum, Words a, Words b) {
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return vaddq_s32(sum, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
