// Sixteen lanes on AVX2, FMA and F16C: two registers of eight. Interface as in vec_avx512.h; see README.md for why both
// have 16 lanes. Everything has internal linkage: code for this instruction set must not be merged with code for
// another.
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
constexpr int kParts = 2;  // registers that make 16 lanes
using Part = __m256;
constexpr std::size_t kPartLanes = 8;

struct F32x16 {
    Part part[kParts];
};
struct I32x16 {
    __m256i part[kParts];
};

// Parts.
HETERO_INLINE Part part_zero() { return _mm256_setzero_ps(); }
HETERO_INLINE Part part_load(const float* p) { return _mm256_loadu_ps(p); }
HETERO_INLINE void part_store(float* p, Part v) { _mm256_storeu_ps(p, v); }
HETERO_INLINE Part part_fma(Part a, Part b, Part c) { return _mm256_fmadd_ps(a, b, c); }

// Loads and stores; n < 16 lanes, the rest read as zero.
HETERO_INLINE F32x16 zero() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
HETERO_INLINE F32x16 splat(float x) { return {{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
HETERO_INLINE F32x16 load(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
HETERO_INLINE F32x16 load(const float* p, std::size_t n) {
    float lanes[kLanes] = {};
    std::memcpy(lanes, p, n * sizeof(float));
    return load(lanes);
}
HETERO_INLINE void store(float* p, F32x16 v) {
    _mm256_storeu_ps(p, v.part[0]);
    _mm256_storeu_ps(p + 8, v.part[1]);
}
HETERO_INLINE void store(float* p, F32x16 v, std::size_t n) {
    float lanes[kLanes];
    store(lanes, v);
    std::memcpy(p, lanes, n * sizeof(float));
}

// Arithmetic, each rounded once.
HETERO_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
    return {{_mm256_add_ps(a.part[0], b.part[0]), _mm256_add_ps(a.part[1], b.part[1])}};
}
HETERO_INLINE F32x16 operator-(F32x16 a, F32x16 b) {
    return {{_mm256_sub_ps(a.part[0], b.part[0]), _mm256_sub_ps(a.part[1], b.part[1])}};
}
HETERO_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
    return {{_mm256_mul_ps(a.part[0], b.part[0]), _mm256_mul_ps(a.part[1], b.part[1])}};
}
HETERO_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
    return {{_mm256_div_ps(a.part[0], b.part[0]), _mm256_div_ps(a.part[1], b.part[1])}};
}
HETERO_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return {{_mm256_fmadd_ps(a.part[0], b.part[0], c.part[0]), _mm256_fmadd_ps(a.part[1], b.part[1], c.part[1])}};
}
// b where either is NaN.
HETERO_INLINE F32x16 max(F32x16 a, F32x16 b) {
    return {{_mm256_max_ps(a.part[0], b.part[0]), _mm256_max_ps(a.part[1], b.part[1])}};
}
HETERO_INLINE F32x16 min(F32x16 a, F32x16 b) {
    return {{_mm256_min_ps(a.part[0], b.part[0]), _mm256_min_ps(a.part[1], b.part[1])}};
}
HETERO_INLINE F32x16 abs(F32x16 a) {
    const __m256 mask = _mm256_set1_ps(-0.0F);
    return {{_mm256_andnot_ps(mask, a.part[0]), _mm256_andnot_ps(mask, a.part[1])}};
}
HETERO_INLINE F32x16 max_abs(F32x16 a, F32x16 b) { return max(abs(a), abs(b)); }  // of the magnitudes
HETERO_INLINE F32x16 copy_sign(F32x16 magnitude, F32x16 sign) {
    const __m256 mask = _mm256_set1_ps(-0.0F);
    return {{_mm256_or_ps(_mm256_andnot_ps(mask, magnitude.part[0]), _mm256_and_ps(mask, sign.part[0])),
             _mm256_or_ps(_mm256_andnot_ps(mask, magnitude.part[1]), _mm256_and_ps(mask, sign.part[1]))}};
}

// a where x < y (false for NaN), else b.
HETERO_INLINE F32x16 where_less(F32x16 x, F32x16 y, F32x16 a, F32x16 b) {
    return {{_mm256_blendv_ps(b.part[0], a.part[0], _mm256_cmp_ps(x.part[0], y.part[0], _CMP_LT_OQ)),
             _mm256_blendv_ps(b.part[1], a.part[1], _mm256_cmp_ps(x.part[1], y.part[1], _CMP_LT_OQ))}};
}

HETERO_INLINE bool any_greater(F32x16 a, F32x16 b) {
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.part[0], b.part[0], _CMP_GT_OQ),
                                           _mm256_cmp_ps(a.part[1], b.part[1], _CMP_GT_OQ))) != 0;
}

HETERO_INLINE F32x16 iota() {
    return {{_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)}};
}
// v in lanes [begin, end), else other; 0 <= begin, end <= 16.
HETERO_INLINE F32x16 where_between(std::size_t begin, std::size_t end, F32x16 v, F32x16 other) {
    const F32x16 lane = iota();
    const F32x16 kept = where_less(lane, splat(static_cast<float>(end)), v, other);
    return where_less(lane, splat(static_cast<float>(begin)), other, kept);
}

// Integers.
HETERO_INLINE I32x16 round_to_int(F32x16 v) {  // nearest even
    return {{_mm256_cvtps_epi32(v.part[0]), _mm256_cvtps_epi32(v.part[1])}};
}
HETERO_INLINE I32x16 truncate_to_int(F32x16 v) {
    return {{_mm256_cvttps_epi32(v.part[0]), _mm256_cvttps_epi32(v.part[1])}};
}
HETERO_INLINE __m256 part_from_integer(__m256 v) {
    return _mm256_sub_ps(v, _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
HETERO_INLINE F32x16 from_integer(F32x16 v) {  // v less the nearest, even where there are two
    return {{part_from_integer(v.part[0]), part_from_integer(v.part[1])}};
}
HETERO_INLINE F32x16 power_of_two(F32x16 v) {  // the largest that is not above a normal v > 0
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
    return {{_mm256_and_ps(v.part[0], mask), _mm256_and_ps(v.part[1], mask)}};
}
HETERO_INLINE I32x16 bits_of(F32x16 v) { return {{_mm256_castps_si256(v.part[0]), _mm256_castps_si256(v.part[1])}}; }
HETERO_INLINE F32x16 to_float(I32x16 v) { return {{_mm256_cvtepi32_ps(v.part[0]), _mm256_cvtepi32_ps(v.part[1])}}; }
HETERO_INLINE I32x16 splat_int(int x) { return {{_mm256_set1_epi32(x), _mm256_set1_epi32(x)}}; }
HETERO_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
    return {{_mm256_add_epi32(a.part[0], b.part[0]), _mm256_add_epi32(a.part[1], b.part[1])}};
}
HETERO_INLINE I32x16 operator-(I32x16 a, I32x16 b) {
    return {{_mm256_sub_epi32(a.part[0], b.part[0]), _mm256_sub_epi32(a.part[1], b.part[1])}};
}
HETERO_INLINE I32x16 operator&(I32x16 a, I32x16 b) {
    return {{_mm256_and_si256(a.part[0], b.part[0]), _mm256_and_si256(a.part[1], b.part[1])}};
}
template <int N>
HETERO_INLINE I32x16 shift_right(I32x16 v) {  // logical
    return {{_mm256_srli_epi32(v.part[0], N), _mm256_srli_epi32(v.part[1], N)}};
}
template <int N>
HETERO_INLINE I32x16 shift_right_signed(I32x16 v) {
    return {{_mm256_srai_epi32(v.part[0], N), _mm256_srai_epi32(v.part[1], N)}};
}
HETERO_INLINE F32x16 pow2(I32x16 n) {  // 2^n, -126 <= n <= 127
    const I32x16 biased = n + splat_int(127);
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(biased.part[0], 23)),
             _mm256_castsi256_ps(_mm256_slli_epi32(biased.part[1], 23))}};
}
HETERO_INLINE F32x16 times_pow2(F32x16 v, I32x16 n) {  // rounded once; -252 <= n <= 254, 2^n itself may be no number
    const I32x16 half = shift_right_signed<1>(n);
    return v * pow2(half) * pow2(n - half);
}
HETERO_INLINE I32x16 widen_unsigned(U8x16 v) {
    return {{_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))}};
}
HETERO_INLINE I32x16 widen_signed(U8x16 v) {
    return {{_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))}};
}
HETERO_INLINE U8x16 narrow(I32x16 v) {  // low bytes
    const __m256i mask = _mm256_set1_epi32(0xff);
    // Per 128-bit lane: four of part 0, four of part 1; the permutation puts the quarters in order.
    const __m256i words = _mm256_packus_epi32(_mm256_and_si256(v.part[0], mask), _mm256_and_si256(v.part[1], mask));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    return _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
}

// Codes: integers of 0 to 255, or -128 to 127 where Signed, as bytes; v has them Above, a multiple of 256, too large. N
// is 1, 2 or 4.
template <bool Signed, int Above, int N>
HETERO_INLINE void store_codes(std::uint8_t* q, const I32x16* v) {
    if constexpr (N == 1) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(q), narrow(v[0]));
    } else {
        // Packing works within 128-bit lanes: four of each register, which the permutation puts in order.
        __m256i a = _mm256_packs_epi32(v[0].part[0], v[0].part[1]), b = _mm256_packs_epi32(v[1].part[0], v[1].part[1]);
        if constexpr (Above != 0) {
            a = _mm256_sub_epi16(a, _mm256_set1_epi16(Above));
            b = _mm256_sub_epi16(b, _mm256_set1_epi16(Above));
        }
        const __m256i packed = Signed ? _mm256_packs_epi16(a, b) : _mm256_packus_epi16(a, b),
                      order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(packed, order));
        if constexpr (N == 4) store_codes<Signed, Above, 2>(q + 2 * kLanes, v + 2);
    }
}

// The low bytes of the bits of v, the low halves of which are codes. N is 1, 2 or 4.
template <bool Signed, int N>
HETERO_INLINE void store_low_bytes(std::uint8_t* q, const F32x16* v) {
    const I32x16 mask = splat_int(0xff);
    I32x16 k[N];
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) k[i] = bits_of(v[i]) & mask;
    store_codes<false, 0, N>(q, k);
}
HETERO_INLINE I32x16 or_differing(I32x16 all, F32x16 a,
                                  F32x16 b) {  // the bits of all, and those in which a and b differ
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
        all.part[i] = _mm256_or_si256(all.part[i], _mm256_castps_si256(_mm256_xor_ps(a.part[i], b.part[i])));
    return all;
}
HETERO_INLINE bool any_set(I32x16 v) {
    const __m256i all = _mm256_or_si256(v.part[0], v.part[1]);
    return _mm256_testz_si256(all, all) == 0;
}

// 32 words of 16 bits.
struct I16x32 {
    __m256i part[2];
};
HETERO_INLINE I16x32 splat_i16(int x) {
    const __m256i v = _mm256_set1_epi16(static_cast<short>(x));
    return {{v, v}};
}
HETERO_INLINE I16x32 load_i16(const void* p) {
    const auto* from = static_cast<const __m256i*>(p);
    return {{_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)}};
}
HETERO_INLINE void store_i16(void* p, I16x32 v) {
    auto* to = static_cast<__m256i*>(p);
    _mm256_storeu_si256(to, v.part[0]);
    _mm256_storeu_si256(to + 1, v.part[1]);
}
HETERO_INLINE I16x32 max(I16x32 a, I16x32 b) {
    return {{_mm256_max_epi16(a.part[0], b.part[0]), _mm256_max_epi16(a.part[1], b.part[1])}};
}
HETERO_INLINE I16x32 min(I16x32 a, I16x32 b) {
    return {{_mm256_min_epi16(a.part[0], b.part[0]), _mm256_min_epi16(a.part[1], b.part[1])}};
}
HETERO_INLINE I16x32 without_sign(I16x32 v) {
    const __m256i mask = _mm256_set1_epi16(0x7fff);
    return {{_mm256_and_si256(v.part[0], mask), _mm256_and_si256(v.part[1], mask)}};
}
HETERO_INLINE I16x32 negative_reversed(I16x32 v) {  // the lower 15 bits turned where the highest is set
    const __m256i mask = _mm256_set1_epi16(0x7fff);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m256i sign = _mm256_srai_epi16(v.part[i], 15);
        v.part[i] = _mm256_xor_si256(v.part[i], _mm256_and_si256(sign, mask));
    }
    return v;
}
HETERO_INLINE int largest_word(I16x32 v) {
    const __m256i m = _mm256_max_epi16(v.part[0], v.part[1]);
    return largest_word(_mm_max_epi16(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1)));
}
HETERO_INLINE int smallest_word(I16x32 v) {
    const __m256i m = _mm256_min_epi16(v.part[0], v.part[1]);
    return smallest_word(_mm_min_epi16(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1)));
}
// Four lanes of eight words, as in vec_avx512.h.
template <int Words>
HETERO_INLINE __m256i zip_low_part(__m256i a, __m256i b) {
    return Words == 1   ? _mm256_unpacklo_epi16(a, b)
           : Words == 2 ? _mm256_unpacklo_epi32(a, b)
                        : _mm256_unpacklo_epi64(a, b);
}
template <int Words>
HETERO_INLINE __m256i zip_high_part(__m256i a, __m256i b) {
    return Words == 1   ? _mm256_unpackhi_epi16(a, b)
           : Words == 2 ? _mm256_unpackhi_epi32(a, b)
                        : _mm256_unpackhi_epi64(a, b);
}
template <int Words>
HETERO_INLINE I16x32 zip_low(I16x32 a, I16x32 b) {
    return {{zip_low_part<Words>(a.part[0], b.part[0]), zip_low_part<Words>(a.part[1], b.part[1])}};
}
template <int Words>
HETERO_INLINE I16x32 zip_high(I16x32 a, I16x32 b) {
    return {{zip_high_part<Words>(a.part[0], b.part[0]), zip_high_part<Words>(a.part[1], b.part[1])}};
}
template <int Lanes>
HETERO_INLINE I16x32 rotate_lanes(I16x32 v) {  // 1 or 2
    if (Lanes == 2) return {{v.part[1], v.part[0]}};
    return {
        {_mm256_permute2x128_si256(v.part[0], v.part[1], 0x21), _mm256_permute2x128_si256(v.part[1], v.part[0], 0x21)}};
}
HETERO_INLINE void store_first_lane(void* p, I16x32 v) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(v.part[0]));
}

// Fields of at most 12 bits in a row of bytes, as in vec_avx512.h: eight of them are within 16 bytes.
struct BitFields {
    std::size_t begin[2];
    __m256i bytes[2], shifts[2], masks[2];
};
HETERO_INLINE BitFields bit_fields(const std::int32_t* at, const std::int32_t* width, std::size_t row_bytes) {
    BitFields fields;
    const __m256i one = _mm256_set1_epi32(1);
    for (int i = 0; i < 2; ++i) {
        const int last = static_cast<int>(row_bytes) - 16, wanted = at[8 * i] / 8,
                  begin = wanted < last ? wanted : last;
        const __m256i local = _mm256_sub_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 8 * i)),
                                               _mm256_set1_epi32(8 * begin));
        const __m256i byte = _mm256_mullo_epi32(_mm256_srli_epi32(local, 3), _mm256_set1_epi32(0x01010101));
        fields.begin[i] = static_cast<std::size_t>(begin);
        fields.bytes[i] = _mm256_add_epi32(byte, _mm256_set1_epi32(0x03020100));
        fields.shifts[i] = _mm256_and_si256(local, _mm256_set1_epi32(7));
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(width + 8 * i));
        fields.masks[i] = _mm256_sub_epi32(_mm256_sllv_epi32(one, bits), one);
    }
    return fields;
}
HETERO_INLINE I32x16 take_fields(const std::uint8_t* row, const BitFields& fields) {
    I32x16 out;
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m256i both = _mm256_broadcastsi128_si256(bytes_load(row + fields.begin[i]));
        const __m256i found = _mm256_shuffle_epi8(both, fields.bytes[i]);
        out.part[i] = _mm256_and_si256(_mm256_srlv_epi32(found, fields.shifts[i]), fields.masks[i]);
    }
    return out;
}
HETERO_INLINE void join_fours(I32x16 a, I32x16 b, const std::int16_t* factors, const std::uint64_t* shifts,
                              const std::uint64_t* place, std::uint64_t* out) {
    const auto* factor = reinterpret_cast<const __m256i*>(factors);
    const auto *shift = reinterpret_cast<const __m256i*>(shifts), *places = reinterpret_cast<const __m256i*>(place);
    auto* to = reinterpret_cast<__m256i*>(out);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m256i pairs =
            _mm256_madd_epi16(_mm256_packs_epi32(a.part[i], b.part[i]), _mm256_loadu_si256(factor + i));
        const __m256i low = _mm256_and_si256(pairs, _mm256_set1_epi64x(0xffffffff)),
                      high = _mm256_sllv_epi64(_mm256_srli_epi64(pairs, 32), _mm256_loadu_si256(shift + i));
        _mm256_storeu_si256(to + i, _mm256_sllv_epi64(_mm256_or_si256(low, high), _mm256_loadu_si256(places + i)));
    }
}

// Sixteen vectors as rows of a matrix, transposed.
HETERO_INLINE void transpose(F32x16 (&v)[16]) {
    F32x16 out[16];
#pragma GCC unroll 4
    for (int block = 0; block < 4; ++block) {  // 8 rows of 8 columns
        const int row = block / 2 * 8, part = block % 2;
        __m256 fours[8];  // fours[4 g + k]: 128-bit lane i is column 4 i + k of four rows
#pragma GCC unroll 2
        for (int g = 0; g < 8; g += 4) {
            const __m256 a = _mm256_unpacklo_ps(v[row + g].part[part], v[row + g + 1].part[part]),
                         b = _mm256_unpackhi_ps(v[row + g].part[part], v[row + g + 1].part[part]),
                         c = _mm256_unpacklo_ps(v[row + g + 2].part[part], v[row + g + 3].part[part]),
                         d = _mm256_unpackhi_ps(v[row + g + 2].part[part], v[row + g + 3].part[part]);
            fours[g] = _mm256_shuffle_ps(a, c, 0x44);
            fours[g + 1] = _mm256_shuffle_ps(a, c, 0xee);
            fours[g + 2] = _mm256_shuffle_ps(b, d, 0x44);
            fours[g + 3] = _mm256_shuffle_ps(b, d, 0xee);
        }
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            out[8 * part + k].part[block / 2] = _mm256_permute2f128_ps(fours[k], fours[4 + k], 0x20);
            out[8 * part + 4 + k].part[block / 2] = _mm256_permute2f128_ps(fours[k], fours[4 + k], 0x31);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = out[i];
}
// The low bytes of v[0] to v[3] in each lane, the first lowest; and byte N of each lane.
HETERO_INLINE F32x16 join_bytes(const F32x16 (&v)[4]) {
    const __m256i byte = _mm256_set1_epi32(0xff);
    F32x16 out;
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const auto bits = [&](int j) { return _mm256_castps_si256(v[j].part[i]); };
        const __m256i low = _mm256_or_si256(_mm256_and_si256(bits(0), byte),
                                            _mm256_slli_epi32(_mm256_and_si256(bits(1), byte), 8)),
                      high = _mm256_or_si256(_mm256_and_si256(bits(2), byte), _mm256_slli_epi32(bits(3), 8));
        out.part[i] = _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_slli_epi32(high, 16)));
    }
    return out;
}
template <int N, bool Signed>
HETERO_INLINE I32x16 take_byte(F32x16 v) {
    I32x16 out;
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m256i top = _mm256_slli_epi32(_mm256_castps_si256(v.part[i]), 24 - 8 * N);
        out.part[i] = Signed ? _mm256_srai_epi32(top, 24) : _mm256_srli_epi32(top, 24);
    }
    return out;
}

// 64 bytes past the caches; `to` is a multiple of 64.
HETERO_INLINE void stream_line(void* to, const void* from) {
    auto* out = static_cast<__m256i*>(to);
    const auto* in = static_cast<const __m256i*>(from);
    _mm256_stream_si256(out, _mm256_loadu_si256(in));
    _mm256_stream_si256(out + 1, _mm256_loadu_si256(in + 1));
}

// table[index mod 16] per lane.
HETERO_INLINE __m256 lookup_part(F32x16 table, __m256i index) {
    const __m256 low = _mm256_permutevar8x32_ps(table.part[0], index);
    const __m256 high = _mm256_permutevar8x32_ps(table.part[1], index);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}
HETERO_INLINE F32x16 lookup(F32x16 table, I32x16 index) {
    return {{lookup_part(table, index.part[0]), lookup_part(table, index.part[1])}};
}
// Byte j is `value` where bit j of `bits` is set, else 0.
HETERO_INLINE U8x16 expand_bits(std::uint16_t bits, char value) {
    const __m128i spread =
        _mm_shuffle_epi8(_mm_cvtsi32_si128(bits), _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    const __m128i bit = _mm_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
    const __m128i set = _mm_cmpeq_epi8(_mm_and_si128(spread, bit), bit);
    return _mm_and_si128(set, _mm_set1_epi8(value));
}

// Half precision. Bits of NaN payloads are kept, NaNs made quiet.
HETERO_INLINE __m128i load_bytes_at(const void* p, int offset) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const char*>(p) + offset));
}
HETERO_INLINE F32x16 load_f16(const void* p) {
    return {{_mm256_cvtph_ps(load_bytes_at(p, 0)), _mm256_cvtph_ps(load_bytes_at(p, 16))}};
}
HETERO_INLINE __m256 bf16_part(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
HETERO_INLINE F32x16 load_bf16(const void* p) {
    return {{bf16_part(load_bytes_at(p, 0)), bf16_part(load_bytes_at(p, 16))}};
}
// 16 e4m3fn codes, none a NaN, times 2^-8: their bits moved to where an f16 has them, subnormals too.
HETERO_INLINE F32x16 load_e4m3fn(const void* p) {
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
    const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)), 7);
    const __m256i halves = _mm256_or_si256(sign, rest);
    return {{_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))}};
}
HETERO_INLINE F32x16 load_e5m2(const void* p) {
    const __m128i codes = _mm_loadu_si128(static_cast<const __m128i*>(p)), none = _mm_setzero_si128();
    return {{_mm256_cvtph_ps(_mm_unpacklo_epi8(none, codes)), _mm256_cvtph_ps(_mm_unpackhi_epi8(none, codes))}};
}
HETERO_INLINE void store_f16(void* p, F32x16 v) {
    auto* out = static_cast<__m128i*>(p);
    _mm_storeu_si128(out, _mm256_cvtps_ph(v.part[0], _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(out + 1, _mm256_cvtps_ph(v.part[1], _MM_FROUND_TO_NEAREST_INT));
}
template <int Rounding>
HETERO_INLINE F32x16 through_f16(F32x16 v) {
    return {
        {_mm256_cvtph_ps(_mm256_cvtps_ph(v.part[0], Rounding)), _mm256_cvtph_ps(_mm256_cvtps_ph(v.part[1], Rounding))}};
}
HETERO_INLINE F32x16 round_to_f16(F32x16 v) { return through_f16<_MM_FROUND_TO_NEAREST_INT>(v); }
HETERO_INLINE F32x16 round_down_to_f16(F32x16 v) { return through_f16<_MM_FROUND_TO_NEG_INF>(v); }
HETERO_INLINE __m256i bf16_bits(__m256 v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
HETERO_INLINE void store_bf16(void* p, F32x16 v) {
    const __m256i words = _mm256_packus_epi32(bf16_bits(v.part[0]), bf16_bits(v.part[1]));
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xd8));
}

// 32 floats in memory, x0 y0 x1 y1 ..., taken apart.
HETERO_INLINE void load_pairs(const float* p, F32x16& x, F32x16& y) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m256 a = _mm256_loadu_ps(p + 16 * i), b = _mm256_loadu_ps(p + 16 * i + 8);
        const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
        const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
        x.part[i] = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
        y.part[i] = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8));
    }
}
// And put together.
HETERO_INLINE void store_pairs(float* p, F32x16 x, F32x16 y) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m256 low = _mm256_unpacklo_ps(x.part[i], y.part[i]), high = _mm256_unpackhi_ps(x.part[i], y.part[i]);
        _mm256_storeu_ps(p + 16 * i, _mm256_permute2f128_ps(low, high, 0x20));
        _mm256_storeu_ps(p + 16 * i + 8, _mm256_permute2f128_ps(low, high, 0x31));
    }
}

// Sum of squares in double, added to `sum`.
struct F64x16 {
    __m256d part[4];
};
HETERO_INLINE F64x16 zero_f64() {
    const __m256d z = _mm256_setzero_pd();
    return {{z, z, z, z}};
}
HETERO_INLINE F64x16 add_square(F64x16 sum, F32x16 v) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v.part[i]));
        const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v.part[i], 1));
        sum.part[2 * i] = _mm256_fmadd_pd(low, low, sum.part[2 * i]);
        sum.part[2 * i + 1] = _mm256_fmadd_pd(high, high, sum.part[2 * i + 1]);
    }
    return sum;
}
HETERO_INLINE F64x16 add_wide(F64x16 sum, F32x16 v) {  // each lane itself
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v.part[i]));
        const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v.part[i], 1));
        sum.part[2 * i] = _mm256_add_pd(low, sum.part[2 * i]);
        sum.part[2 * i + 1] = _mm256_add_pd(high, sum.part[2 * i + 1]);
    }
    return sum;
}
HETERO_INLINE void store(double* p, F64x16 v) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, v.part[i]);
}

HETERO_INLINE double square_root(double x) { return _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(x))); }

HETERO_INLINE float max_lane(F32x16 v) {
    const __m256 m8 = _mm256_max_ps(v.part[0], v.part[1]);
    const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_shuffle_ps(m2, m2, 1)));
}
HETERO_INLINE float min_lane(F32x16 v) {
    const __m256 m8 = _mm256_min_ps(v.part[0], v.part[1]);
    const __m128 m4 = _mm_min_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    const __m128 m2 = _mm_min_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_min_ss(m2, _mm_shuffle_ps(m2, m2, 1)));
}

// Sums of 16 lanes, always as the tree i + (i + 8), i + (i + 4), i + (i + 2), i + (i + 1).
HETERO_INLINE __m128 fold_to_4(F32x16 v) {
    const __m256 s8 = _mm256_add_ps(v.part[0], v.part[1]);
    return _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
}
HETERO_INLINE float sum(F32x16 v) {
    const __m128 s4 = fold_to_4(v);
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
HETERO_INLINE __m128 sum_4(const F32x16 (&v)[4]) {
    const __m128 a = fold_to_4(v[0]), b = fold_to_4(v[1]), c = fold_to_4(v[2]), d = fold_to_4(v[3]);
    const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
    const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
    return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}
// [i][j] gives lane 4 * i + j of the result.
HETERO_INLINE F32x16 sum_4x4(const F32x16 (&v)[4][4]) {
    return {{_mm256_set_m128(sum_4(v[1]), sum_4(v[0])), _mm256_set_m128(sum_4(v[3]), sum_4(v[2]))}};
}
// out[i * stride + j] = the sum of v[i][j].
template <int N>
HETERO_INLINE void store_sums(const F32x16 (&v)[N][4], float* out, std::size_t stride) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) _mm_storeu_ps(out + i * stride, sum_4(v[i]));
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
