// Dot products of unsigned codes and signed 8-bit activations, four at a time into 32-bit lanes, on AVX-512 BW, or with
// the VNNI instructions. Included after vec_avx512.h; interface as in dot_avx2.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

using Words = __m512i;
constexpr std::size_t kWordBytes = 64;

HETERO_INLINE Words words_load(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
HETERO_INLINE void words_store(std::uint8_t* p, Words v) { _mm512_storeu_si512(p, v); }
HETERO_INLINE Words words_splat(int x) { return _mm512_set1_epi32(x); }
HETERO_INLINE Words words_add(Words a, Words b) { return _mm512_add_epi32(a, b); }
HETERO_INLINE Words bytes_minus(Words v, int x) { return _mm512_sub_epi8(v, _mm512_set1_epi8(static_cast<char>(x))); }
HETERO_INLINE Words low_nibbles(Words v) { return _mm512_and_si512(v, _mm512_set1_epi8(0xf)); }
HETERO_INLINE Words high_nibbles(Words v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
HETERO_INLINE Words add_high_bits(Words v, const std::uint8_t* p) {
    std::uint64_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return _mm512_mask_add_epi8(v, bits, v, _mm512_set1_epi8(16));
}
HETERO_INLINE Part words_to_float(Words v) { return _mm512_cvtepi32_ps(v); }
HETERO_INLINE Part part_splat(float x) { return _mm512_set1_ps(x); }
HETERO_INLINE Part part_mul(Part a, Part b) { return _mm512_mul_ps(a, b); }
HETERO_INLINE Part part_add(Part a, Part b) { return _mm512_add_ps(a, b); }
HETERO_INLINE Part part_f16(const std::uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

#ifdef __AVX512VNNI__
constexpr int kWideZero = 0;
HETERO_INLINE Words dot_narrow(Words sum, Words codes, Words x) { return _mm512_dpbusd_epi32(sum, codes, x); }
HETERO_INLINE Words dot_wide(Words sum, Words codes, Words x) { return _mm512_dpbusd_epi32(sum, codes, x); }
// In place: compilers copy the sums of the intrinsic from register to register, and many of them by way of memory.
HETERO_INLINE void add_dot(Words& sum, Words codes, Words x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(x));
}
#else
HETERO_INLINE Words dot_pairs(Words sum, Words unsigned_bytes, Words signed_bytes) {
    const __m512i pairs = _mm512_maddubs_epi16(unsigned_bytes, signed_bytes);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
HETERO_INLINE Words dot_narrow(Words sum, Words codes, Words x) { return dot_pairs(sum, codes, x); }
constexpr int kWideZero = 128;
HETERO_INLINE Words dot_wide(Words sum, Words codes, Words x) {
    const __m512i centred = bytes_minus(codes, kWideZero);
    const __m512i turned = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(centred), _mm512_setzero_si512(), x);
    return dot_pairs(sum, _mm512_abs_epi8(centred), turned);
}
HETERO_INLINE void add_dot(Words& sum, Words codes, Words x) { sum = dot_wide(sum, codes, x); }
#endif

// ---- bytes and numbers of 16 bits (split.h)

HETERO_INLINE Words words_shift_left_8(Words v) { return _mm512_slli_epi32(v, 8); }
HETERO_INLINE Words bytes_flip(Words v, int bits) {
    return _mm512_xor_si512(v, _mm512_set1_epi8(static_cast<char>(bits)));
}

// Rows 0, 1, 2 and 3 of 16 bytes side by side.
HETERO_INLINE __m512i four_rows(const std::uint8_t* p, std::size_t step) {
    __m512i v = _mm512_castsi128_si512(bytes_load(p));
    v = _mm512_inserti32x4(v, bytes_load(p + step), 1);
    v = _mm512_inserti32x4(v, bytes_load(p + 2 * step), 2);
    return _mm512_inserti32x4(v, bytes_load(p + 3 * step), 3);
}
HETERO_INLINE void row_words(const std::uint8_t* p, std::size_t step, Words (&words)[4][kParts]) {
    const __m512i r0 = four_rows(p, 4 * step), r1 = four_rows(p + step, 4 * step);
    const __m512i r2 = four_rows(p + 2 * step, 4 * step), r3 = four_rows(p + 3 * step, 4 * step);
    const __m512i a = _mm512_unpacklo_epi32(r0, r1), b = _mm512_unpackhi_epi32(r0, r1);
    const __m512i c = _mm512_unpacklo_epi32(r2, r3), d = _mm512_unpackhi_epi32(r2, r3);
    words[0][0] = _mm512_unpacklo_epi64(a, c);
    words[1][0] = _mm512_unpackhi_epi64(a, c);
    words[2][0] = _mm512_unpacklo_epi64(b, d);
    words[3][0] = _mm512_unpackhi_epi64(b, d);
}
HETERO_INLINE void column_words(const std::uint8_t* p, std::size_t step, Words (&words)[1][kParts]) {
    const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    words[0][0] = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(lanes, four_rows(p, step)), bytes);
}
// Of rows of 64 bytes: lane 4 i + j of words[k] has byte 16 i + 4 k + j. in_order() brings what was summed of them to
// 16 bytes' each.
constexpr int kColumnUnits = 4;
HETERO_INLINE void column_words(const std::uint8_t* p, std::size_t step, Words (&words)[kColumnUnits][kParts]) {
    const __m512i r0 = words_load(p), r1 = words_load(p + step);
    const __m512i r2 = words_load(p + 2 * step), r3 = words_load(p + 3 * step);
    const __m512i a = _mm512_unpacklo_epi8(r0, r1), b = _mm512_unpackhi_epi8(r0, r1);
    const __m512i c = _mm512_unpacklo_epi8(r2, r3), d = _mm512_unpackhi_epi8(r2, r3);
    words[0][0] = _mm512_unpacklo_epi16(a, c);
    words[1][0] = _mm512_unpackhi_epi16(a, c);
    words[2][0] = _mm512_unpacklo_epi16(b, d);
    words[3][0] = _mm512_unpackhi_epi16(b, d);
}
HETERO_INLINE void in_order(I32x16 (&v)[kColumnUnits]) {
    const __m512i a = _mm512_shuffle_i32x4(v[0].part[0], v[1].part[0], 0x44),
                  b = _mm512_shuffle_i32x4(v[0].part[0], v[1].part[0], 0xee),
                  c = _mm512_shuffle_i32x4(v[2].part[0], v[3].part[0], 0x44),
                  d = _mm512_shuffle_i32x4(v[2].part[0], v[3].part[0], 0xee);
    v[0] = {{_mm512_shuffle_i32x4(a, c, 0x88)}};
    v[1] = {{_mm512_shuffle_i32x4(a, c, 0xdd)}};
    v[2] = {{_mm512_shuffle_i32x4(b, d, 0x88)}};
    v[3] = {{_mm512_shuffle_i32x4(b, d, 0xdd)}};
}

#ifdef __AVX512VNNI__
// Four times 16 numbers of 16 bits: of each 16 the high parts, then the low ones, from -128 to 127 all.
HETERO_INLINE void store_high_and_low(std::uint8_t* p, const I32x16 (&numbers)[4]) {
    // Packing works within 128-bit lanes: lane i has the i-th four of all, which the permutation puts in order.
    const __m512i a = _mm512_packs_epi32(numbers[0].part[0], numbers[1].part[0]);
    const __m512i b = _mm512_packs_epi32(numbers[2].part[0], numbers[3].part[0]);
    const auto high = [](__m512i v) { return _mm512_srai_epi16(_mm512_add_epi16(v, _mm512_set1_epi16(128)), 8); };
    const auto low = [](__m512i v) { return _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8); };
    const __m512i highs = _mm512_packs_epi16(high(a), high(b)), lows = _mm512_packs_epi16(low(a), low(b));
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    _mm512_storeu_si512(p, _mm512_permutex2var_epi32(highs, first, lows));
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(2));
    _mm512_storeu_si512(p + 64, _mm512_permutex2var_epi32(highs, second, lows));
}
#endif

HETERO_INLINE Words even_bytes(Words v) { return _mm512_and_si512(v, _mm512_set1_epi16(255)); }
HETERO_INLINE Words odd_bytes(Words v) { return _mm512_srli_epi16(v, 8); }
HETERO_INLINE Words dot_halves(Words sum, Words a, Words b) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
