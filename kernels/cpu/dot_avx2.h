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

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
