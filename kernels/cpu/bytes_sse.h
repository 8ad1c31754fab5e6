// Sixteen bytes, for both x86 lanes. Included by vec_*.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

using U8x16 = __m128i;

HETERO_INLINE U8x16 bytes_load(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
HETERO_INLINE void bytes_store(std::uint8_t* p, U8x16 v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
HETERO_INLINE U8x16 bytes_splat(int value) { return _mm_set1_epi8(static_cast<char>(value)); }
HETERO_INLINE U8x16 bytes_from(std::uint64_t low, std::uint64_t high) {
    return _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low));
}
HETERO_INLINE U8x16 bytes_and(U8x16 a, U8x16 b) { return _mm_and_si128(a, b); }
HETERO_INLINE U8x16 bytes_or(U8x16 a, U8x16 b) { return _mm_or_si128(a, b); }
HETERO_INLINE U8x16 bytes_xor(U8x16 a, U8x16 b) { return _mm_xor_si128(a, b); }
HETERO_INLINE U8x16 bytes_sub(U8x16 a, U8x16 b) { return _mm_sub_epi8(a, b); }
// Of 16-bit lanes, low byte first.
HETERO_INLINE U8x16 halves_shift_left(U8x16 a, int n) { return _mm_slli_epi16(a, n); }
HETERO_INLINE U8x16 halves_shift_right(U8x16 a, int n) { return _mm_srli_epi16(a, n); }
// a0 b0 a1 b1 ..., of the first eight bytes of each, or the last.
HETERO_INLINE U8x16 zip_low(U8x16 a, U8x16 b) { return _mm_unpacklo_epi8(a, b); }
HETERO_INLINE U8x16 zip_high(U8x16 a, U8x16 b) { return _mm_unpackhi_epi8(a, b); }
// 32 values below 16 as 16 bytes: those of even index low, those of odd index high.
HETERO_INLINE U8x16 join_nibbles(U8x16 first, U8x16 second) {
    const __m128i weights = _mm_set1_epi16(0x1001);  // even + 16 * odd
    return _mm_packus_epi16(_mm_maddubs_epi16(first, weights), _mm_maddubs_epi16(second, weights));
}

// Of eight words: the smallest of unsigned ones is what there is an instruction for.
HETERO_INLINE int largest_word(__m128i v) {
    const __m128i turn = _mm_set1_epi16(0x7fff);
    return static_cast<short>(_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(v, turn))) ^ 0x7fff);
}
HETERO_INLINE int smallest_word(__m128i v) {
    const __m128i turn = _mm_set1_epi16(static_cast<short>(0x8000));
    return static_cast<short>(_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(v, turn))) ^ 0x8000);
}

HETERO_INLINE void stream_end() { _mm_sfence(); }  // after stream_line()

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
