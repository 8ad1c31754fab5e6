// Dot products of unsigned codes and signed 8-bit activations, four at a time into 32-bit lanes, on AVX2, or with the
// VNNI instructions on 256 bits. Included after vec_avx2.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

using Words = __m256i;
constexpr std::size_t kWordBytes = 32;

HETERO_INLINE Words words_load(const std::uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
HETERO_INLINE void words_store(std::uint8_t* p, Words v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
HETERO_INLINE Words words_splat(int x) { return _mm256_set1_epi32(x); }
HETERO_INLINE Words words_add(Words a, Words b) { return _mm256_add_epi32(a, b); }
HETERO_INLINE Words bytes_minus(Words v, int x) { return _mm256_sub_epi8(v, _mm256_set1_epi8(static_cast<char>(x))); }
HETERO_INLINE Words low_nibbles(Words v) { return _mm256_and_si256(v, _mm256_set1_epi8(0xf)); }
HETERO_INLINE Words high_nibbles(Words v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }
// Byte i gets 16 where bit i of the 32 bits at p is set.
HETERO_INLINE Words add_high_bits(Words v, const std::uint8_t* p) {
    std::int32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    const __m256i spread =
        _mm256_shuffle_epi8(_mm256_set1_epi32(bits), _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2,
                                                                      2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
    const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
    return _mm256_or_si256(v, _mm256_and_si256(set, _mm256_set1_epi8(16)));
}
HETERO_INLINE Part words_to_float(Words v) { return _mm256_cvtepi32_ps(v); }
HETERO_INLINE Part part_splat(float x) { return _mm256_set1_ps(x); }
HETERO_INLINE Part part_mul(Part a, Part b) { return _mm256_mul_ps(a, b); }
HETERO_INLINE Part part_add(Part a, Part b) { return _mm256_add_ps(a, b); }
HETERO_INLINE Part part_f16(const std::uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

#ifdef __AVXVNNI__
constexpr int kWideZero = 0;
HETERO_INLINE Words dot_narrow(Words sum, Words codes, Words x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
HETERO_INLINE Words dot_wide(Words sum, Words codes, Words x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
#else
HETERO_INLINE Words dot_pairs(Words sum, Words unsigned_bytes, Words signed_bytes) {
    const __m256i pairs = _mm256_maddubs_epi16(unsigned_bytes, signed_bytes);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
// Codes up to 31: a pair of products fits 16 bits.
HETERO_INLINE Words dot_narrow(Words sum, Words codes, Words x) { return dot_pairs(sum, codes, x); }
// Codes up to 255: taken as code - kWideZero, whose magnitude times 127, twice, fits.
constexpr int kWideZero = 128;
HETERO_INLINE Words dot_wide(Words sum, Words codes, Words x) {
    const __m256i centred = bytes_minus(codes, kWideZero);
    return dot_pairs(sum, _mm256_abs_epi8(centred), _mm256_sign_epi8(x, centred));
}
#endif
HETERO_INLINE void add_dot(Words& sum, Words codes, Words x) { sum = dot_wide(sum, codes, x); }

// ---- bytes and numbers of 16 bits (split.h)

HETERO_INLINE Words words_shift_left_8(Words v) { return _mm256_slli_epi32(v, 8); }
HETERO_INLINE Words bytes_flip(Words v, int bits) {
    return _mm256_xor_si256(v, _mm256_set1_epi8(static_cast<char>(bits)));
}

HETERO_INLINE __m256i two_rows(const std::uint8_t* p, std::size_t step) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(bytes_load(p)), bytes_load(p + step), 1);
}
// words[j]: bytes 4 j to 4 j + 3 of 16 rows of 16 bytes; a lane is a row.
HETERO_INLINE void row_words(const std::uint8_t* p, std::size_t step, Words (&words)[4][kParts]) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part, p += 8 * step) {
        const __m256i r0 = two_rows(p, 4 * step), r1 = two_rows(p + step, 4 * step);
        const __m256i r2 = two_rows(p + 2 * step, 4 * step), r3 = two_rows(p + 3 * step, 4 * step);
        const __m256i a = _mm256_unpacklo_epi32(r0, r1), b = _mm256_unpackhi_epi32(r0, r1);
        const __m256i c = _mm256_unpacklo_epi32(r2, r3), d = _mm256_unpackhi_epi32(r2, r3);
        words[0][part] = _mm256_unpacklo_epi64(a, c);
        words[1][part] = _mm256_unpackhi_epi64(a, c);
        words[2][part] = _mm256_unpacklo_epi64(b, d);
        words[3][part] = _mm256_unpackhi_epi64(b, d);
    }
}
// Lane i: byte i of 4 rows of 16 bytes.
HETERO_INLINE void column_words(const std::uint8_t* p, std::size_t step, Words (&words)[1][kParts]) {
    const U8x16 r0 = bytes_load(p), r1 = bytes_load(p + step);
    const U8x16 r2 = bytes_load(p + 2 * step), r3 = bytes_load(p + 3 * step);
    const __m128i a = zip_low(r0, r1), b = zip_high(r0, r1), c = zip_low(r2, r3), d = zip_high(r2, r3);
    words[0][0] = _mm256_set_m128i(_mm_unpackhi_epi16(a, c), _mm_unpacklo_epi16(a, c));
    words[0][1] = _mm256_set_m128i(_mm_unpackhi_epi16(b, d), _mm_unpacklo_epi16(b, d));
}
constexpr int kColumnUnits = 1;  // that there is a way to take together

// As numbers of 16 bits, and the sums of two products of such.
HETERO_INLINE Words even_bytes(Words v) { return _mm256_and_si256(v, _mm256_set1_epi16(255)); }
HETERO_INLINE Words odd_bytes(Words v) { return _mm256_srli_epi16(v, 8); }
HETERO_INLINE Words dot_halves(Words sum, Words a, Words b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
