// Sixteen lanes on AVX-512 (F, BW, VL, DQ). Interface as in vec_avx2.h; see README.md for why both have 16 lanes.
// Everything has internal linkage: code for this instruction set must not be merged with code for another.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define HETERO_INLINE inline __attribute__((always_inline))

#include "kernels/cpu/bytes_sse.h"

namespace hetero::kernels::HETERO_ISA {
namespace {

constexpr std::size_t kLanes = 16;
constexpr int kParts = 1;  // registers that make 16 lanes
using Part = __m512;
constexpr std::size_t kPartLanes = 16;

struct F32x16 {
    Part part[kParts];
};
struct I32x16 {
    __m512i part[kParts];
};

HETERO_INLINE __mmask16 first(std::size_t n) { return static_cast<__mmask16>((1u << n) - 1); }

// Parts.
HETERO_INLINE Part part_zero() { return _mm512_setzero_ps(); }
HETERO_INLINE Part part_load(const float* p) { return _mm512_loadu_ps(p); }
HETERO_INLINE void part_store(float* p, Part v) { _mm512_storeu_ps(p, v); }
HETERO_INLINE Part part_fma(Part a, Part b, Part c) { return _mm512_fmadd_ps(a, b, c); }

// Loads and stores; n < 16 lanes, the rest read as zero.
HETERO_INLINE F32x16 zero() { return {{_mm512_setzero_ps()}}; }
HETERO_INLINE F32x16 splat(float x) { return {{_mm512_set1_ps(x)}}; }
HETERO_INLINE F32x16 load(const float* p) { return {{_mm512_loadu_ps(p)}}; }
HETERO_INLINE F32x16 load(const float* p, std::size_t n) { return {{_mm512_maskz_loadu_ps(first(n), p)}}; }
HETERO_INLINE void store(float* p, F32x16 v) { _mm512_storeu_ps(p, v.part[0]); }
HETERO_INLINE void store(float* p, F32x16 v, std::size_t n) { _mm512_mask_storeu_ps(p, first(n), v.part[0]); }

// Arithmetic, each rounded once.
HETERO_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {{_mm512_add_ps(a.part[0], b.part[0])}}; }
HETERO_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return {{_mm512_sub_ps(a.part[0], b.part[0])}}; }
HETERO_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {{_mm512_mul_ps(a.part[0], b.part[0])}}; }
HETERO_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {{_mm512_div_ps(a.part[0], b.part[0])}}; }
HETERO_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {{_mm512_fmadd_ps(a.part[0], b.part[0], c.part[0])}}; }
// b where either is NaN.
HETERO_INLINE F32x16 max(F32x16 a, F32x16 b) { return {{_mm512_max_ps(a.part[0], b.part[0])}}; }
HETERO_INLINE F32x16 min(F32x16 a, F32x16 b) { return {{_mm512_min_ps(a.part[0], b.part[0])}}; }
HETERO_INLINE F32x16 abs(F32x16 a) { return {{_mm512_abs_ps(a.part[0])}}; }
HETERO_INLINE F32x16 max_abs(F32x16 a, F32x16 b) {  // of the magnitudes
    return {{_mm512_range_ps(a.part[0], b.part[0], 0xb)}};
}
HETERO_INLINE F32x16 copy_sign(F32x16 magnitude, F32x16 sign) {
    const __m512 mask = _mm512_set1_ps(-0.0F);
    return {{_mm512_or_ps(_mm512_andnot_ps(mask, magnitude.part[0]), _mm512_and_ps(mask, sign.part[0]))}};
}

// a where x < y (false for NaN), else b.
HETERO_INLINE F32x16 where_less(F32x16 x, F32x16 y, F32x16 a, F32x16 b) {
    return {{_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.part[0], y.part[0], _CMP_LT_OQ), b.part[0], a.part[0])}};
}
HETERO_INLINE bool any_greater(F32x16 a, F32x16 b) { return _mm512_cmp_ps_mask(a.part[0], b.part[0], _CMP_GT_OQ) != 0; }
// v in lanes [begin, end), else other; 0 <= begin, end <= 16.
HETERO_INLINE F32x16 where_between(std::size_t begin, std::size_t end, F32x16 v, F32x16 other) {
    const auto mask = static_cast<__mmask16>(((1u << end) - 1) & ~((1u << begin) - 1));
    return {{_mm512_mask_blend_ps(mask, other.part[0], v.part[0])}};
}

// Integers.
HETERO_INLINE I32x16 round_to_int(F32x16 v) { return {{_mm512_cvtps_epi32(v.part[0])}}; }  // nearest even
HETERO_INLINE I32x16 truncate_to_int(F32x16 v) { return {{_mm512_cvttps_epi32(v.part[0])}}; }
// v less the nearest, even where there are two.
HETERO_INLINE F32x16 from_integer(F32x16 v) { return {{_mm512_reduce_ps(v.part[0], 0x00)}}; }
// The largest power of two that is not above a normal v > 0.
HETERO_INLINE F32x16 power_of_two(F32x16 v) {
    return {{_mm512_and_ps(v.part[0], _mm512_castsi512_ps(_mm512_set1_epi32(0x7f800000)))}};
}
HETERO_INLINE I32x16 bits_of(F32x16 v) { return {{_mm512_castps_si512(v.part[0])}}; }
HETERO_INLINE F32x16 to_float(I32x16 v) { return {{_mm512_cvtepi32_ps(v.part[0])}}; }
HETERO_INLINE I32x16 splat_int(int x) { return {{_mm512_set1_epi32(x)}}; }
HETERO_INLINE I32x16 operator+(I32x16 a, I32x16 b) { return {{_mm512_add_epi32(a.part[0], b.part[0])}}; }
HETERO_INLINE I32x16 operator-(I32x16 a, I32x16 b) { return {{_mm512_sub_epi32(a.part[0], b.part[0])}}; }
HETERO_INLINE I32x16 operator&(I32x16 a, I32x16 b) { return {{_mm512_and_si512(a.part[0], b.part[0])}}; }
template <int N>
HETERO_INLINE I32x16 shift_right(I32x16 v) {  // logical
    return {{_mm512_srli_epi32(v.part[0], N)}};
}
template <int N>
HETERO_INLINE I32x16 shift_right_signed(I32x16 v) {
    return {{_mm512_srai_epi32(v.part[0], N)}};
}
HETERO_INLINE F32x16 pow2(I32x16 n) {  // 2^n, -126 <= n <= 127
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.part[0], _mm512_set1_epi32(127)), 23))}};
}
HETERO_INLINE F32x16 times_pow2(F32x16 v, I32x16 n) {  // rounded once, whatever n is
    return {{_mm512_scalef_ps(v.part[0], _mm512_cvtepi32_ps(n.part[0]))}};
}
HETERO_INLINE I32x16 widen_unsigned(U8x16 v) { return {{_mm512_cvtepu8_epi32(v)}}; }
HETERO_INLINE I32x16 widen_signed(U8x16 v) { return {{_mm512_cvtepi8_epi32(v)}}; }
HETERO_INLINE U8x16 narrow(I32x16 v) { return _mm512_cvtepi32_epi8(v.part[0]); }  // low bytes

// Codes: integers of 0 to 255, or -128 to 127 where Signed, as bytes; v has them Above, a multiple of 256, too large. N
// is 1, 2 or 4.
template <bool Signed, int Above, int N>
HETERO_INLINE void store_codes(std::uint8_t* q, const I32x16* v) {
    if constexpr (N == 1) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(q), narrow(v[0]));
    } else if constexpr (N == 2) {
        store_codes<Signed, Above, 1>(q, v);
        store_codes<Signed, Above, 1>(q + kLanes, v + 1);
    } else {
        // Packing works within 128-bit lanes: four of each v, lane by lane, which the permutation puts in order.
        __m512i a = _mm512_packs_epi32(v[0].part[0], v[1].part[0]), b = _mm512_packs_epi32(v[2].part[0], v[3].part[0]);
        if constexpr (Above != 0) {
            a = _mm512_sub_epi16(a, _mm512_set1_epi16(Above));
            b = _mm512_sub_epi16(b, _mm512_set1_epi16(Above));
        }
        const __m512i packed = Signed ? _mm512_packs_epi16(a, b) : _mm512_packus_epi16(a, b),
                      order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        _mm512_storeu_si512(q, _mm512_permutexvar_epi32(order, packed));
    }
}

// The low bytes of the bits of v, the low halves of which are codes. N is 1, 2 or 4.
template <bool Signed, int N>
HETERO_INLINE void store_low_bytes(std::uint8_t* q, const F32x16* v) {
    const auto bits = [&](int i) { return _mm512_castps_si512(v[i].part[0]); };
    if constexpr (N == 1) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(bits(0)));
    } else if constexpr (N == 2) {
        store_low_bytes<Signed, 1>(q, v);
        store_low_bytes<Signed, 1>(q + kLanes, v + 1);
    } else {
        // The even words of two. Packing takes eight of each by turns, which the permutation puts in order.
        const auto pair = [](int i) { return (4 * i + 2) << 16 | 4 * i; };
        const __m512i even = _mm512_setr_epi32(pair(0), pair(1), pair(2), pair(3), pair(4), pair(5), pair(6), pair(7),
                                               pair(8), pair(9), pair(10), pair(11), pair(12), pair(13), pair(14),
                                               pair(15)),
                      a = _mm512_permutex2var_epi16(bits(0), even, bits(1)),
                      b = _mm512_permutex2var_epi16(bits(2), even, bits(3)),
                      packed = Signed ? _mm512_packs_epi16(a, b) : _mm512_packus_epi16(a, b),
                      order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
        _mm512_storeu_si512(q, _mm512_permutexvar_epi64(order, packed));
    }
}
HETERO_INLINE I32x16 or_differing(I32x16 all, F32x16 a,
                                  F32x16 b) {  // the bits of all, and those in which a and b differ
    constexpr int a_or_b_xor_c = 0xf6;
    return {{_mm512_ternarylogic_epi32(all.part[0], _mm512_castps_si512(a.part[0]), _mm512_castps_si512(b.part[0]),
                                       a_or_b_xor_c)}};
}
HETERO_INLINE bool any_set(I32x16 v) { return _mm512_test_epi32_mask(v.part[0], v.part[0]) != 0; }

// 32 words of 16 bits.
struct I16x32 {
    __m512i part[1];
};
HETERO_INLINE I16x32 splat_i16(int x) { return {{_mm512_set1_epi16(static_cast<short>(x))}}; }
HETERO_INLINE I16x32 load_i16(const void* p) { return {{_mm512_loadu_si512(p)}}; }
HETERO_INLINE void store_i16(void* p, I16x32 v) { _mm512_storeu_si512(p, v.part[0]); }
HETERO_INLINE I16x32 max(I16x32 a, I16x32 b) { return {{_mm512_max_epi16(a.part[0], b.part[0])}}; }
HETERO_INLINE I16x32 min(I16x32 a, I16x32 b) { return {{_mm512_min_epi16(a.part[0], b.part[0])}}; }
HETERO_INLINE I16x32 without_sign(I16x32 v) { return {{_mm512_and_si512(v.part[0], _mm512_set1_epi16(0x7fff))}}; }
HETERO_INLINE I16x32 negative_reversed(I16x32 v) {  // the lower 15 bits turned where the highest is set
    const __m512i sign = _mm512_srai_epi16(v.part[0], 15);
    return {{_mm512_xor_si512(v.part[0], _mm512_and_si512(sign, _mm512_set1_epi16(0x7fff)))}};
}
HETERO_INLINE int largest_word(I16x32 v) {
    const __m256i m = _mm256_max_epi16(_mm512_castsi512_si256(v.part[0]), _mm512_extracti64x4_epi64(v.part[0], 1));
    return largest_word(_mm_max_epi16(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1)));
}
HETERO_INLINE int smallest_word(I16x32 v) {
    const __m256i m = _mm256_min_epi16(_mm512_castsi512_si256(v.part[0]), _mm512_extracti64x4_epi64(v.part[0], 1));
    return smallest_word(_mm_min_epi16(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1)));
}
// Four lanes of eight words. Groups of Words of a and b by turns: a0 b0 a1 b1 ..., of the lower half of each lane, and
// of the upper.
template <int Words>
HETERO_INLINE I16x32 zip_low(I16x32 a, I16x32 b) {
    return {{Words == 1   ? _mm512_unpacklo_epi16(a.part[0], b.part[0])
             : Words == 2 ? _mm512_unpacklo_epi32(a.part[0], b.part[0])
                          : _mm512_unpacklo_epi64(a.part[0], b.part[0])}};
}
template <int Words>
HETERO_INLINE I16x32 zip_high(I16x32 a, I16x32 b) {
    return {{Words == 1   ? _mm512_unpackhi_epi16(a.part[0], b.part[0])
             : Words == 2 ? _mm512_unpackhi_epi32(a.part[0], b.part[0])
                          : _mm512_unpackhi_epi64(a.part[0], b.part[0])}};
}
template <int Lanes>
HETERO_INLINE I16x32 rotate_lanes(I16x32 v) {  // 1 or 2
    return {{_mm512_shuffle_i64x2(v.part[0], v.part[0], Lanes == 1 ? 0x39 : 0x4e)}};
}
HETERO_INLINE void store_first_lane(void* p, I16x32 v) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_castsi512_si128(v.part[0]));
}

// Fields of at most 12 bits in a row of bytes, lowest bit first: 16 of them, lane i from bit at[i] of the row on, in
// ascending order. A row has 16 bytes at least, of which none beyond the last is read.
struct BitFields {
    std::size_t begin;  // the first byte
    __mmask32 bytes;
    __m512i words, shifts, masks;
};
HETERO_INLINE BitFields bit_fields(const std::int32_t* at, const std::int32_t* width, std::size_t row_bytes) {
    const int begin = at[0] / 8;
    const std::size_t left = row_bytes - static_cast<std::size_t>(begin);
    const __m512i one = _mm512_set1_epi32(1),
                  local = _mm512_sub_epi32(_mm512_loadu_si512(at), _mm512_set1_epi32(8 * begin)),
                  word = _mm512_srli_epi32(local, 4);  // and the one after it, as 12 bits may lie in two
    return {static_cast<std::size_t>(begin), left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1,
            _mm512_or_si512(word, _mm512_slli_epi32(_mm512_add_epi32(word, one), 16)),
            _mm512_and_si512(local, _mm512_set1_epi32(15)),
            _mm512_sub_epi32(_mm512_sllv_epi32(one, _mm512_loadu_si512(width)), one)};
}
HETERO_INLINE I32x16 take_fields(const std::uint8_t* row, const BitFields& fields) {
    const __m512i words = _mm512_zextsi256_si512(_mm256_maskz_loadu_epi8(fields.bytes, row + fields.begin));
    const __m512i both = _mm512_permutexvar_epi16(fields.words, words);
    return {{_mm512_and_si512(_mm512_srlv_epi32(both, fields.shifts), fields.masks)}};
}
// Codes of at most 12 bits joined by fours, the first lowest: out[2 i] has those of the lanes 4 i to 4 i + 3 of `a`,
// out[2 i + 1] those of `b`. A code is multiplied by its factor, 1 or 2 to the width of the one before it, a pair
// shifted by the width of the pair before it, and the four by `place`. factors [32]: in the order of the codes in
// `out`.
HETERO_INLINE void join_fours(I32x16 a, I32x16 b, const std::int16_t* factors, const std::uint64_t* shifts,
                              const std::uint64_t* place, std::uint64_t* out) {
    const __m512i pairs = _mm512_madd_epi16(_mm512_packs_epi32(a.part[0], b.part[0]), _mm512_loadu_si512(factors));
    const __m512i low = _mm512_and_si512(pairs, _mm512_set1_epi64(0xffffffff)),
                  high = _mm512_sllv_epi64(_mm512_srli_epi64(pairs, 32), _mm512_loadu_si512(shifts));
    _mm512_storeu_si512(out, _mm512_sllv_epi64(_mm512_or_si512(low, high), _mm512_loadu_si512(place)));
}

// Sixteen vectors as rows of a matrix, transposed.
HETERO_INLINE void transpose(F32x16 (&v)[16]) {
    __m512 fours[16];  // fours[4 g + k]: 128-bit lane i is column 4 i + k of the rows 4 g to 4 g + 3
#pragma GCC unroll 4
    for (int g = 0; g < 16; g += 4) {
        const __m512 a = _mm512_unpacklo_ps(v[g].part[0], v[g + 1].part[0]),
                     b = _mm512_unpackhi_ps(v[g].part[0], v[g + 1].part[0]),
                     c = _mm512_unpacklo_ps(v[g + 2].part[0], v[g + 3].part[0]),
                     d = _mm512_unpackhi_ps(v[g + 2].part[0], v[g + 3].part[0]);
        fours[g] = _mm512_shuffle_ps(a, c, 0x44);
        fours[g + 1] = _mm512_shuffle_ps(a, c, 0xee);
        fours[g + 2] = _mm512_shuffle_ps(b, d, 0x44);
        fours[g + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
        const __m512 a = _mm512_shuffle_f32x4(fours[k], fours[4 + k], 0x88),
                     b = _mm512_shuffle_f32x4(fours[k], fours[4 + k], 0xdd),
                     c = _mm512_shuffle_f32x4(fours[8 + k], fours[12 + k], 0x88),
                     d = _mm512_shuffle_f32x4(fours[8 + k], fours[12 + k], 0xdd);
        v[k] = {{_mm512_shuffle_f32x4(a, c, 0x88)}};
        v[4 + k] = {{_mm512_shuffle_f32x4(b, d, 0x88)}};
        v[8 + k] = {{_mm512_shuffle_f32x4(a, c, 0xdd)}};
        v[12 + k] = {{_mm512_shuffle_f32x4(b, d, 0xdd)}};
    }
}
// The low bytes of v[0] to v[3] in each lane, the first lowest; and byte N of each lane.
HETERO_INLINE F32x16 join_bytes(const F32x16 (&v)[4]) {
    const __m512i byte = _mm512_set1_epi32(0xff), half = _mm512_set1_epi32(0xffff);
    constexpr int where = 0xe2;  // a where b, else c
    const auto bits = [&](int i) { return _mm512_castps_si512(v[i].part[0]); };
    const __m512i low = _mm512_ternarylogic_epi32(bits(0), byte, _mm512_slli_epi32(bits(1), 8), where),
                  high = _mm512_ternarylogic_epi32(bits(2), byte, _mm512_slli_epi32(bits(3), 8), where);
    return {{_mm512_castsi512_ps(_mm512_ternarylogic_epi32(low, half, _mm512_slli_epi32(high, 16), where))}};
}
template <int N, bool Signed>
HETERO_INLINE I32x16 take_byte(F32x16 v) {
    const __m512i top = _mm512_slli_epi32(_mm512_castps_si512(v.part[0]), 24 - 8 * N);
    return {{Signed ? _mm512_srai_epi32(top, 24) : _mm512_srli_epi32(top, 24)}};
}

// 64 bytes past the caches; `to` is a multiple of 64.
HETERO_INLINE void stream_line(void* to, const void* from) {
    _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(from));
}

// table[index mod 16] per lane.
HETERO_INLINE F32x16 lookup(F32x16 table, I32x16 index) {
    return {{_mm512_permutexvar_ps(index.part[0], table.part[0])}};
}
HETERO_INLINE F32x16 iota() { return {{_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}}; }
// Byte j is `value` where bit j of `bits` is set, else 0.
HETERO_INLINE U8x16 expand_bits(std::uint16_t bits, char value) { return _mm_maskz_set1_epi8(bits, value); }

// Half precision. Bits of NaN payloads are kept, NaNs made quiet.
HETERO_INLINE F32x16 load_f16(const void* p) {
    return {{_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}};
}
HETERO_INLINE F32x16 load_bf16(const void* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))}};
}
// 16 e4m3fn codes, none a NaN, times 2^-8: their bits moved to where an f16 has them, subnormals too. And 16 e5m2
// codes.
HETERO_INLINE F32x16 load_e4m3fn(const void* p) {
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
    const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)), 7);
    return {{_mm512_cvtph_ps(_mm256_or_si256(sign, rest))}};
}
HETERO_INLINE F32x16 load_e5m2(const void* p) {
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return {{_mm512_cvtph_ps(_mm256_slli_epi16(wide, 8))}};
}
HETERO_INLINE void store_f16(void* p, F32x16 v) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(v.part[0], _MM_FROUND_TO_NEAREST_INT));
}
template <int Rounding>
HETERO_INLINE F32x16 through_f16(F32x16 v) {
    return {{_mm512_cvtph_ps(_mm512_cvtps_ph(v.part[0], Rounding))}};
}
HETERO_INLINE F32x16 round_to_f16(F32x16 v) { return through_f16<_MM_FROUND_TO_NEAREST_INT>(v); }
HETERO_INLINE F32x16 round_down_to_f16(F32x16 v) { return through_f16<_MM_FROUND_TO_NEG_INF>(v); }
HETERO_INLINE void store_bf16(void* p, F32x16 v) {
    const __m512i bits = _mm512_castps_si512(v.part[0]);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v.part[0], v.part[0], _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_blend_epi32(nan, rounded, quiet);
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
}

// 32 floats in memory, x0 y0 x1 y1 ..., taken apart.
HETERO_INLINE void load_pairs(const float* p, F32x16& x, F32x16& y) {
    const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    x = {{_mm512_permutex2var_ps(a, even, b)}};
    y = {{_mm512_permutex2var_ps(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b)}};
}
// And put together.
HETERO_INLINE void store_pairs(float* p, F32x16 x, F32x16 y) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    _mm512_storeu_ps(p, _mm512_permutex2var_ps(x.part[0], low, y.part[0]));
    _mm512_storeu_ps(p + 16,
                     _mm512_permutex2var_ps(x.part[0], _mm512_add_epi32(low, _mm512_set1_epi32(8)), y.part[0]));
}

// Sum of squares in double, added to `sum`.
struct F64x16 {
    __m512d part[2];
};
HETERO_INLINE F64x16 zero_f64() { return {{_mm512_setzero_pd(), _mm512_setzero_pd()}}; }
HETERO_INLINE F64x16 add_square(F64x16 sum, F32x16 v) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v.part[0]));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v.part[0], 1));
    return {{_mm512_fmadd_pd(low, low, sum.part[0]), _mm512_fmadd_pd(high, high, sum.part[1])}};
}
HETERO_INLINE F64x16 add_wide(F64x16 sum, F32x16 v) {  // each lane itself
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v.part[0]));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v.part[0], 1));
    return {{_mm512_add_pd(low, sum.part[0]), _mm512_add_pd(high, sum.part[1])}};
}
HETERO_INLINE void store(double* p, F64x16 v) {
    _mm512_storeu_pd(p, v.part[0]);
    _mm512_storeu_pd(p + 8, v.part[1]);
}

HETERO_INLINE double square_root(double x) { return _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(x))); }

HETERO_INLINE float max_lane(F32x16 v) { return _mm512_reduce_max_ps(v.part[0]); }
HETERO_INLINE float min_lane(F32x16 v) { return _mm512_reduce_min_ps(v.part[0]); }

// Sums of 16 lanes, always as the tree i + (i + 8), i + (i + 4), i + (i + 2), i + (i + 1).
HETERO_INLINE float sum(F32x16 v) {
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(v.part[0]), _mm512_extractf32x8_ps(v.part[0], 1));
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
// [i][j] gives lane 4 * i + j of the result.
HETERO_INLINE F32x16 sum_4x4(const F32x16 (&v)[4][4]) {
    __m512 quads[4];  // quads[j]: 128-bit lane i is v[i][j] folded to four
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        __m512 folded[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            const __m512 a = v[2 * i][j].part[0], b = v[2 * i + 1][j].part[0];
            folded[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e));
        }
        quads[j] = _mm512_add_ps(_mm512_shuffle_f32x4(folded[0], folded[1], 0x88),
                                 _mm512_shuffle_f32x4(folded[0], folded[1], 0xdd));
    }
    const __m512 s01 = _mm512_add_ps(_mm512_unpacklo_ps(quads[0], quads[1]), _mm512_unpackhi_ps(quads[0], quads[1]));
    const __m512 s23 = _mm512_add_ps(_mm512_unpacklo_ps(quads[2], quads[3]), _mm512_unpackhi_ps(quads[2], quads[3]));
    return {{_mm512_add_ps(_mm512_shuffle_ps(s01, s23, 0x44), _mm512_shuffle_ps(s01, s23, 0xee))}};
}
// [i][j] gives lane 4 * i + j of the low half of the result.
HETERO_INLINE F32x16 sum_2x4(const F32x16 (&v)[2][4]) {
    __m512 folded[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        const __m512 a = v[0][j].part[0], b = v[1][j].part[0];
        folded[j] = _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e));
    }
    // 128-bit lanes: [0][j], [1][j], [0][j + 1], [1][j + 1].
    const __m512 s01 = _mm512_add_ps(_mm512_shuffle_f32x4(folded[0], folded[1], 0x88),
                                     _mm512_shuffle_f32x4(folded[0], folded[1], 0xdd));
    const __m512 s23 = _mm512_add_ps(_mm512_shuffle_f32x4(folded[2], folded[3], 0x88),
                                     _mm512_shuffle_f32x4(folded[2], folded[3], 0xdd));
    const __m512 s2 = _mm512_add_ps(_mm512_unpacklo_ps(s01, s23), _mm512_unpackhi_ps(s01, s23));
    const __m512 s1 = _mm512_add_ps(s2, _mm512_shuffle_ps(s2, s2, 0x4e));
    const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 4, 12, 5, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    return {{_mm512_permutexvar_ps(order, s1)}};
}
// out[i * stride + j] = the sum of v[i][j].
template <int N>
HETERO_INLINE void store_sums(const F32x16 (&v)[N][4], float* out, std::size_t stride) {
    int i = 0;
#pragma GCC unroll 2
    for (; N - i >= 3; i += 4) {
        F32x16 four[4][4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k)
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) four[k][j] = i + k < N ? v[i + k < N ? i + k : 0][j] : zero();
        const __m512 sums = sum_4x4(four).part[0];
        _mm_storeu_ps(out + i * stride, _mm512_castps512_ps128(sums));
        _mm_storeu_ps(out + (i + 1) * stride, _mm512_extractf32x4_ps(sums, 1));
        _mm_storeu_ps(out + (i + 2) * stride, _mm512_extractf32x4_ps(sums, 2));
        if (i + 3 < N) _mm_storeu_ps(out + (i + 3) * stride, _mm512_extractf32x4_ps(sums, 3));
    }
    if (i < N) {
        F32x16 two[2][4];
#pragma GCC unroll 2
        for (int k = 0; k < 2; ++k)
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) two[k][j] = i + k < N ? v[i + k < N ? i + k : 0][j] : zero();
        const __m512 sums = sum_2x4(two).part[0];
        _mm_storeu_ps(out + i * stride, _mm512_castps512_ps128(sums));
        if (i + 1 < N) _mm_storeu_ps(out + (i + 1) * stride, _mm512_extractf32x4_ps(sums, 1));
    }
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
