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
#endif

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
