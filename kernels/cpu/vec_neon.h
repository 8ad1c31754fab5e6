// Sixteen lanes on Advanced SIMD (A64): four registers of four. Interface as in vec_avx512.h, and the same bits: where
// the instructions of the two differ (maxima with NaN), these follow x86.
#pragma once
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define HETERO_INLINE inline __attribute__((always_inline))

namespace hetero::kernels::HETERO_ISA {
namespace {

constexpr std::size_t kLanes = 16;
constexpr int kParts = 4;  // registers that make 16 lanes
using Part = float32x4_t;
constexpr std::size_t kPartLanes = 4;

struct F32x16 {
    Part part[kParts];
};
struct I32x16 {
    int32x4_t part[kParts];
};
using U8x16 = uint8x16_t;

// f(part of a, of b ...) for each part.
template <class Out, class F, class... In>
HETERO_INLINE Out by_part(F f, const In&... in) {
    return {{f(in.part[0]...), f(in.part[1]...), f(in.part[2]...), f(in.part[3]...)}};
}
#define HETERO_BY_PART(Out, expression, ...) \
    by_part<Out>(                            \
        [](auto... parts) __attribute__((always_inline)) { return expression(parts...); }, __VA_ARGS__)

// Bytes.
HETERO_INLINE U8x16 bytes_load(const std::uint8_t* p) { return vld1q_u8(p); }
HETERO_INLINE void bytes_store(std::uint8_t* p, U8x16 v) { vst1q_u8(p, v); }
HETERO_INLINE U8x16 bytes_splat(int value) { return vdupq_n_u8(static_cast<std::uint8_t>(value)); }
HETERO_INLINE U8x16 bytes_from(std::uint64_t low, std::uint64_t high) {
    return vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(low), vcreate_u64(high)));
}
HETERO_INLINE U8x16 bytes_and(U8x16 a, U8x16 b) { return vandq_u8(a, b); }
HETERO_INLINE U8x16 bytes_or(U8x16 a, U8x16 b) { return vorrq_u8(a, b); }
HETERO_INLINE U8x16 bytes_xor(U8x16 a, U8x16 b) { return veorq_u8(a, b); }
HETERO_INLINE U8x16 bytes_sub(U8x16 a, U8x16 b) { return vsubq_u8(a, b); }
HETERO_INLINE U8x16 halves_shift_left(U8x16 a, int n) {
    return vreinterpretq_u8_u16(vshlq_u16(vreinterpretq_u16_u8(a), vdupq_n_s16(static_cast<std::int16_t>(n))));
}
HETERO_INLINE U8x16 halves_shift_right(U8x16 a, int n) { return halves_shift_left(a, -n); }
HETERO_INLINE U8x16 zip_low(U8x16 a, U8x16 b) { return vzip1q_u8(a, b); }
HETERO_INLINE U8x16 zip_high(U8x16 a, U8x16 b) { return vzip2q_u8(a, b); }
// 32 values below 16 as 16 bytes: those of even index low, those of odd index high.
HETERO_INLINE U8x16 join_nibbles(U8x16 first, U8x16 second) {
    return vsliq_n_u8(vuzp1q_u8(first, second), vuzp2q_u8(first, second), 4);
}

// Parts.
HETERO_INLINE Part part_zero() { return vdupq_n_f32(0); }
HETERO_INLINE Part part_load(const float* p) { return vld1q_f32(p); }
HETERO_INLINE void part_store(float* p, Part v) { vst1q_f32(p, v); }
HETERO_INLINE Part part_fma(Part a, Part b, Part c) { return vfmaq_f32(c, a, b); }

// Loads and stores; n < 16 lanes, the rest read as zero.
HETERO_INLINE F32x16 splat(float x) { return {{vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x)}}; }
HETERO_INLINE F32x16 zero() { return splat(0); }
HETERO_INLINE F32x16 load(const float* p) {
    return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
HETERO_INLINE F32x16 load(const float* p, std::size_t n) {
    float lanes[kLanes] = {};
    std::memcpy(lanes, p, n * sizeof(float));
    return load(lanes);
}
HETERO_INLINE void store(float* p, F32x16 v) {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) vst1q_f32(p + 4 * i, v.part[i]);
}
HETERO_INLINE void store(float* p, F32x16 v, std::size_t n) {
    float lanes[kLanes];
    store(lanes, v);
    std::memcpy(p, lanes, n * sizeof(float));
}

// Arithmetic, each rounded once.
HETERO_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return HETERO_BY_PART(F32x16, vaddq_f32, a, b); }
HETERO_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return HETERO_BY_PART(F32x16, vsubq_f32, a, b); }
HETERO_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return HETERO_BY_PART(F32x16, vmulq_f32, a, b); }
HETERO_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return HETERO_BY_PART(F32x16, vdivq_f32, a, b); }
HETERO_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return HETERO_BY_PART(F32x16, vfmaq_f32, c, a, b); }
// b where either is NaN.
HETERO_INLINE Part part_max(Part a, Part b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
HETERO_INLINE Part part_min(Part a, Part b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
HETERO_INLINE F32x16 max(F32x16 a, F32x16 b) { return HETERO_BY_PART(F32x16, part_max, a, b); }
HETERO_INLINE F32x16 min(F32x16 a, F32x16 b) { return HETERO_BY_PART(F32x16, part_min, a, b); }
HETERO_INLINE F32x16 abs(F32x16 a) { return HETERO_BY_PART(F32x16, vabsq_f32, a); }
HETERO_INLINE F32x16 max_abs(F32x16 a, F32x16 b) { return max(abs(a), abs(b)); }  // of the magnitudes
HETERO_INLINE Part part_copy_sign(Part magnitude, Part sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000), sign, magnitude);
}
HETERO_INLINE F32x16 copy_sign(F32x16 magnitude, F32x16 sign) {
    return HETERO_BY_PART(F32x16, part_copy_sign, magnitude, sign);
}

// a where x < y (false for NaN), else b.
HETERO_INLINE Part part_where_less(Part x, Part y, Part a, Part b) { return vbslq_f32(vcltq_f32(x, y), a, b); }
HETERO_INLINE F32x16 where_less(F32x16 x, F32x16 y, F32x16 a, F32x16 b) {
    return HETERO_BY_PART(F32x16, part_where_less, x, y, a, b);
}

HETERO_INLINE bool any_greater(F32x16 a, F32x16 b) {
    uint32x4_t any = vcgtq_f32(a.part[0], b.part[0]);
#pragma GCC unroll 3
    for (int i = 1; i < kParts; ++i) any = vorrq_u32(any, vcgtq_f32(a.part[i], b.part[i]));
    return vmaxvq_u32(any) != 0;
}

HETERO_INLINE F32x16 iota() {
    alignas(16) static constexpr float kNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return load(kNumbers);
}
// v in lanes [begin, end), else other; 0 <= begin, end <= 16.
HETERO_INLINE F32x16 where_between(std::size_t begin, std::size_t end, F32x16 v, F32x16 other) {
    const F32x16 lane = iota();
    const F32x16 kept = where_less(lane, splat(static_cast<float>(end)), v, other);
    return where_less(lane, splat(static_cast<float>(begin)), other, kept);
}

// Integers.
HETERO_INLINE I32x16 truncate_to_int(F32x16 v) { return HETERO_BY_PART(I32x16, vcvtq_s32_f32, v); }
HETERO_INLINE I32x16 round_to_int(F32x16 v) { return HETERO_BY_PART(I32x16, vcvtnq_s32_f32, v); }  // nearest even
HETERO_INLINE Part part_from_integer(Part v) { return vsubq_f32(v, vrndnq_f32(v)); }
// v less the nearest, even where there are two.
HETERO_INLINE F32x16 from_integer(F32x16 v) { return HETERO_BY_PART(F32x16, part_from_integer, v); }
HETERO_INLINE Part part_power_of_two(Part v) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), vdupq_n_u32(0x7f800000)));
}
HETERO_INLINE F32x16 power_of_two(F32x16 v) {  // the largest that is not above a normal v > 0
    return HETERO_BY_PART(F32x16, part_power_of_two, v);
}
HETERO_INLINE I32x16 bits_of(F32x16 v) { return HETERO_BY_PART(I32x16, vreinterpretq_s32_f32, v); }
HETERO_INLINE F32x16 to_float(I32x16 v) { return HETERO_BY_PART(F32x16, vcvtq_f32_s32, v); }
HETERO_INLINE I32x16 splat_int(int x) { return {{vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x)}}; }
HETERO_INLINE I32x16 operator+(I32x16 a, I32x16 b) { return HETERO_BY_PART(I32x16, vaddq_s32, a, b); }
HETERO_INLINE I32x16 operator-(I32x16 a, I32x16 b) { return HETERO_BY_PART(I32x16, vsubq_s32, a, b); }
HETERO_INLINE I32x16 operator&(I32x16 a, I32x16 b) { return HETERO_BY_PART(I32x16, vandq_s32, a, b); }
template <int N>
HETERO_INLINE int32x4_t part_shift_right(int32x4_t v) {
    return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(v), N));
}
template <int N>
HETERO_INLINE I32x16 shift_right(I32x16 v) {  // logical
    return HETERO_BY_PART(I32x16, part_shift_right<N>, v);
}
template <int N>
HETERO_INLINE int32x4_t part_shift_right_signed(int32x4_t v) {
    return vshrq_n_s32(v, N);
}
template <int N>
HETERO_INLINE I32x16 shift_right_signed(I32x16 v) {
    return HETERO_BY_PART(I32x16, part_shift_right_signed<N>, v);
}
HETERO_INLINE Part part_pow2(int32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}
HETERO_INLINE F32x16 pow2(I32x16 n) { return HETERO_BY_PART(F32x16, part_pow2, n); }  // 2^n, -126 <= n <= 127
HETERO_INLINE F32x16 times_pow2(F32x16 v, I32x16 n) {  // rounded once; -252 <= n <= 254, 2^n itself may be no number
    const I32x16 half = shift_right_signed<1>(n);
    return v * pow2(half) * pow2(n - half);
}
HETERO_INLINE I32x16 widen_signed(U8x16 v) {
    const int8x16_t bytes = vreinterpretq_s8_u8(v);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
             vmovl_s16(vget_high_s16(high))}};
}
HETERO_INLINE I32x16 widen_unsigned(U8x16 v) {
    const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(v)));
    const int16x8_t high = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(v)));
    return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
             vmovl_s16(vget_high_s16(high))}};
}
HETERO_INLINE U8x16 narrow(I32x16 v) {  // low bytes
    const int16x8_t low = vcombine_s16(vmovn_s32(v.part[0]), vmovn_s32(v.part[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(v.part[2]), vmovn_s32(v.part[3]));
    return vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

// table[index mod 16] per lane.
HETERO_INLINE F32x16 lookup(F32x16 table, I32x16 index) {
    const uint8x16x4_t bytes{{vreinterpretq_u8_f32(table.part[0]), vreinterpretq_u8_f32(table.part[1]),
                              vreinterpretq_u8_f32(table.part[2]), vreinterpretq_u8_f32(table.part[3])}};
    F32x16 out;
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) {
        const uint32x4_t lane = vandq_u32(vreinterpretq_u32_s32(index.part[i]), vdupq_n_u32(15));
        const uint32x4_t at = vmlaq_n_u32(vdupq_n_u32(0x03020100), lane, 0x04040404);
        out.part[i] = vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(at)));
    }
    return out;
}
// Codes: integers of 0 to 255, or -128 to 127 where Signed, as bytes; v has them Above, a multiple of 256, too large. N
// is 1, 2 or 4.
template <bool Signed, int Above, int N>
HETERO_INLINE void store_codes(std::uint8_t* q, const I32x16* v) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) bytes_store(q + kLanes * static_cast<std::size_t>(j), narrow(v[j]));
}

// The low bytes of the bits of v.
template <bool Signed, int N>
HETERO_INLINE void store_low_bytes(std::uint8_t* q, const F32x16* v) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) bytes_store(q + kLanes * static_cast<std::size_t>(j), narrow(bits_of(v[j])));
}
HETERO_INLINE int32x4_t part_or_differing(int32x4_t all, Part a, Part b) {
    return vorrq_s32(all, veorq_s32(vreinterpretq_s32_f32(a), vreinterpretq_s32_f32(b)));
}
HETERO_INLINE I32x16 or_differing(I32x16 all, F32x16 a,
                                  F32x16 b) {  // the bits of all, and those in which a and b differ
    return HETERO_BY_PART(I32x16, part_or_differing, all, a, b);
}
HETERO_INLINE bool any_set(I32x16 v) {
    const int32x4_t all = vorrq_s32(vorrq_s32(v.part[0], v.part[1]), vorrq_s32(v.part[2], v.part[3]));
    return vmaxvq_u32(vreinterpretq_u32_s32(all)) != 0;
}

// 32 words of 16 bits.
struct I16x32 {
    int16x8_t part[4];
};
HETERO_INLINE I16x32 splat_i16(int x) {
    const int16x8_t v = vdupq_n_s16(static_cast<std::int16_t>(x));
    return {{v, v, v, v}};
}
HETERO_INLINE I16x32 load_i16(const void* p) {
    const auto* bytes = static_cast<const std::uint8_t*>(p);
    I16x32 v;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) v.part[i] = vreinterpretq_s16_u8(vld1q_u8(bytes + 16 * i));
    return v;
}
HETERO_INLINE void store_i16(void* p, I16x32 v) {
    auto* bytes = static_cast<std::uint8_t*>(p);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) vst1q_u8(bytes + 16 * i, vreinterpretq_u8_s16(v.part[i]));
}
HETERO_INLINE I16x32 max(I16x32 a, I16x32 b) { return HETERO_BY_PART(I16x32, vmaxq_s16, a, b); }
HETERO_INLINE I16x32 min(I16x32 a, I16x32 b) { return HETERO_BY_PART(I16x32, vminq_s16, a, b); }
HETERO_INLINE I16x32 without_sign(I16x32 v) {
    const I16x32 mask = splat_i16(0x7fff);
    return HETERO_BY_PART(I16x32, vandq_s16, v, mask);
}
HETERO_INLINE int16x8_t part_negative_reversed(int16x8_t v) {
    return veorq_s16(v, vandq_s16(vshrq_n_s16(v, 15), vdupq_n_s16(0x7fff)));
}
HETERO_INLINE I16x32 negative_reversed(I16x32 v) {  // the lower 15 bits turned where the highest is set
    return HETERO_BY_PART(I16x32, part_negative_reversed, v);
}
HETERO_INLINE int largest_word(I16x32 v) {
    return vmaxvq_s16(vmaxq_s16(vmaxq_s16(v.part[0], v.part[1]), vmaxq_s16(v.part[2], v.part[3])));
}
HETERO_INLINE int smallest_word(I16x32 v) {
    return vminvq_s16(vminq_s16(vminq_s16(v.part[0], v.part[1]), vminq_s16(v.part[2], v.part[3])));
}
// Four lanes of eight words, as in vec_avx512.h.
template <int Words>
HETERO_INLINE int16x8_t zip_low_part(int16x8_t a, int16x8_t b) {
    if (Words == 1) return vzip1q_s16(a, b);
    if (Words == 2) return vreinterpretq_s16_s32(vzip1q_s32(vreinterpretq_s32_s16(a), vreinterpretq_s32_s16(b)));
    return vreinterpretq_s16_s64(vzip1q_s64(vreinterpretq_s64_s16(a), vreinterpretq_s64_s16(b)));
}
template <int Words>
HETERO_INLINE int16x8_t zip_high_part(int16x8_t a, int16x8_t b) {
    if (Words == 1) return vzip2q_s16(a, b);
    if (Words == 2) return vreinterpretq_s16_s32(vzip2q_s32(vreinterpretq_s32_s16(a), vreinterpretq_s32_s16(b)));
    return vreinterpretq_s16_s64(vzip2q_s64(vreinterpretq_s64_s16(a), vreinterpretq_s64_s16(b)));
}
template <int Words>
HETERO_INLINE I16x32 zip_low(I16x32 a, I16x32 b) {
    return HETERO_BY_PART(I16x32, zip_low_part<Words>, a, b);
}
template <int Words>
HETERO_INLINE I16x32 zip_high(I16x32 a, I16x32 b) {
    return HETERO_BY_PART(I16x32, zip_high_part<Words>, a, b);
}
template <int Lanes>
HETERO_INLINE I16x32 rotate_lanes(I16x32 v) {  // 1 or 2
    return {{v.part[Lanes], v.part[Lanes + 1], v.part[(Lanes + 2) % 4], v.part[(Lanes + 3) % 4]}};
}
HETERO_INLINE void store_first_lane(void* p, I16x32 v) {
    vst1q_u8(static_cast<std::uint8_t*>(p), vreinterpretq_u8_s16(v.part[0]));
}

// Fields of at most 12 bits in a row of bytes, as in vec_avx512.h: four of them are within 8 bytes.
struct BitFields {
    std::size_t begin[4];
    uint8x16_t bytes[4];
    int32x4_t shifts[4];  // to the left
    int32x4_t masks[4];
};
HETERO_INLINE BitFields bit_fields(const std::int32_t* at, const std::int32_t* width, std::size_t row_bytes) {
    BitFields fields;
    const int32x4_t one = vdupq_n_s32(1);
    for (int i = 0; i < 4; ++i) {
        const int last = static_cast<int>(row_bytes) - 16, wanted = at[4 * i] / 8,
                  begin = wanted < last ? wanted : last;
        const int32x4_t local = vsubq_s32(vld1q_s32(at + 4 * i), vdupq_n_s32(8 * begin));
        const int32x4_t byte = vmlaq_n_s32(vdupq_n_s32(0x03020100), vshrq_n_s32(local, 3), 0x01010101);
        fields.begin[i] = static_cast<std::size_t>(begin);
        fields.bytes[i] = vreinterpretq_u8_s32(byte);
        fields.shifts[i] = vnegq_s32(vandq_s32(local, vdupq_n_s32(7)));
        fields.masks[i] = vsubq_s32(vshlq_s32(one, vld1q_s32(width + 4 * i)), one);
    }
    return fields;
}
HETERO_INLINE I32x16 take_fields(const std::uint8_t* row, const BitFields& fields) {
    I32x16 out;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const uint8x16_t found = vqtbl1q_u8(vld1q_u8(row + fields.begin[i]), fields.bytes[i]);
        const uint32x4_t moved = vshlq_u32(vreinterpretq_u32_u8(found), fields.shifts[i]);
        out.part[i] = vandq_s32(vreinterpretq_s32_u32(moved), fields.masks[i]);
    }
    return out;
}
HETERO_INLINE void join_fours(I32x16 a, I32x16 b, const std::int16_t* factors, const std::uint64_t* shifts,
                              const std::uint64_t* place, std::uint64_t* out) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const int32x4_t first = vmull_s16(vmovn_s32(a.part[i]), vld1_s16(factors + 8 * i)),
                        second = vmull_s16(vmovn_s32(b.part[i]), vld1_s16(factors + 8 * i + 4));
        const uint64x2_t pairs = vreinterpretq_u64_s32(vpaddq_s32(first, second));
        const uint64x2_t low = vandq_u64(pairs, vdupq_n_u64(0xffffffff));
        const int64x2_t shift = vreinterpretq_s64_u64(vld1q_u64(shifts + 2 * i)),
                        placed = vreinterpretq_s64_u64(vld1q_u64(place + 2 * i));
        vst1q_u64(out + 2 * i, vshlq_u64(vorrq_u64(low, vshlq_u64(vshrq_n_u64(pairs, 32), shift)), placed));
    }
}

// Sixteen vectors as rows of a matrix, transposed.
HETERO_INLINE void transpose(F32x16 (&v)[16]) {
    F32x16 out[16];
#pragma GCC unroll 16
    for (int block = 0; block < 16; ++block) {  // 4 rows of 4 columns
        const int row = block / 4 * 4, part = block % 4;
        const Part a = vzip1q_f32(v[row].part[part], v[row + 2].part[part]),
                   b = vzip2q_f32(v[row].part[part], v[row + 2].part[part]),
                   c = vzip1q_f32(v[row + 1].part[part], v[row + 3].part[part]),
                   d = vzip2q_f32(v[row + 1].part[part], v[row + 3].part[part]);
        out[4 * part].part[block / 4] = vzip1q_f32(a, c);
        out[4 * part + 1].part[block / 4] = vzip2q_f32(a, c);
        out[4 * part + 2].part[block / 4] = vzip1q_f32(b, d);
        out[4 * part + 3].part[block / 4] = vzip2q_f32(b, d);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = out[i];
}
// The low bytes of v[0] to v[3] in each lane, the first lowest; and byte N of each lane.
HETERO_INLINE Part part_join_bytes(Part a, Part b, Part c, Part d) {
    const int32x4_t low = vsliq_n_s32(vreinterpretq_s32_f32(a), vreinterpretq_s32_f32(b), 8),
                    high = vsliq_n_s32(vreinterpretq_s32_f32(c), vreinterpretq_s32_f32(d), 8);
    return vreinterpretq_f32_s32(vsliq_n_s32(low, high, 16));
}
HETERO_INLINE F32x16 join_bytes(const F32x16 (&v)[4]) {
    return HETERO_BY_PART(F32x16, part_join_bytes, v[0], v[1], v[2], v[3]);
}
template <int N, bool Signed>
HETERO_INLINE I32x16 take_byte(F32x16 v) {
    I32x16 out;
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) {
        const int32x4_t top = vshlq_n_s32(vreinterpretq_s32_f32(v.part[i]), 24 - 8 * N);
        out.part[i] = Signed ? vshrq_n_s32(top, 24) : part_shift_right<24>(top);
    }
    return out;
}

// 64 bytes; stores past the caches are left to the memory system here.
HETERO_INLINE void stream_line(void* to, const void* from) { std::memcpy(to, from, 64); }
HETERO_INLINE void stream_end() {}

// Byte j is `value` where bit j of `bits` is set, else 0.
HETERO_INLINE U8x16 expand_bits(std::uint16_t bits, char value) {
    const U8x16 spread =
        vcombine_u8(vdup_n_u8(static_cast<std::uint8_t>(bits & 0xff)), vdup_n_u8(static_cast<std::uint8_t>(bits >> 8)));
    const U8x16 bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ULL));
    return vandq_u8(vtstq_u8(spread, bit), vdupq_n_u8(static_cast<std::uint8_t>(value)));
}

// Half precision. Bits of NaN payloads are kept, NaNs made quiet.
HETERO_INLINE uint16x4_t load_halves(const void* p, int first) {
    uint16x4_t out;
    std::memcpy(&out, static_cast<const char*>(p) + 2 * first, sizeof out);
    return out;
}
HETERO_INLINE Part part_f16(const void* p, int first) {
    return vcvt_f32_f16(vreinterpret_f16_u16(load_halves(p, first)));
}
HETERO_INLINE F32x16 load_f16(const void* p) {
    return {{part_f16(p, 0), part_f16(p, 4), part_f16(p, 8), part_f16(p, 12)}};
}
HETERO_INLINE Part part_bf16(const void* p, int first) {
    return vreinterpretq_f32_u32(vshll_n_u16(load_halves(p, first), 16));
}
HETERO_INLINE F32x16 load_bf16(const void* p) {
    return {{part_bf16(p, 0), part_bf16(p, 4), part_bf16(p, 8), part_bf16(p, 12)}};
}
// 16 e4m3fn codes, none a NaN, times 2^-8: their bits moved to where an f16 has them, subnormals too.
HETERO_INLINE F32x16 load_e4m3fn(const void* p) {
    const uint8x16_t codes = vld1q_u8(static_cast<const std::uint8_t*>(p));
    F32x16 out;
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const uint16x8_t wide = vmovl_u8(i == 0 ? vget_low_u8(codes) : vget_high_u8(codes));
        const uint16x8_t sign = vshlq_n_u16(vandq_u16(wide, vdupq_n_u16(0x80)), 8);
        const uint16x8_t halves = vorrq_u16(sign, vshlq_n_u16(vandq_u16(wide, vdupq_n_u16(0x7f)), 7));
        out.part[2 * i] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves)));
        out.part[2 * i + 1] = vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(halves)));
    }
    return out;
}
HETERO_INLINE F32x16 load_e5m2(const void* p) {
    const uint8x16_t codes = vld1q_u8(static_cast<const std::uint8_t*>(p));
    F32x16 out;
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const uint16x8_t halves = vshlq_n_u16(vmovl_u8(i == 0 ? vget_low_u8(codes) : vget_high_u8(codes)), 8);
        out.part[2 * i] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves)));
        out.part[2 * i + 1] = vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(halves)));
    }
    return out;
}
HETERO_INLINE void store_f16(void* p, F32x16 v) {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) {
        const float16x4_t halves = vcvt_f16_f32(v.part[i]);
        std::memcpy(static_cast<char*>(p) + 8 * i, &halves, sizeof halves);
    }
}
HETERO_INLINE Part part_round_to_f16(Part v) { return vcvt_f32_f16(vcvt_f16_f32(v)); }
HETERO_INLINE F32x16 round_to_f16(F32x16 v) { return HETERO_BY_PART(F32x16, part_round_to_f16, v); }
HETERO_INLINE Part part_round_down_to_f16(Part v) {  // the nearest, or the one before it
    const float16x4_t nearest = vcvt_f16_f32(v);
    const int16x4_t bits = vreinterpret_s16_f16(nearest), up = vorr_s16(vshr_n_s16(bits, 15), vdup_n_s16(1)),
                    above = vreinterpret_s16_u16(vmovn_u32(vcgtq_f32(vcvt_f32_f16(nearest), v)));
    return vcvt_f32_f16(vreinterpret_f16_s16(vsub_s16(bits, vand_s16(up, above))));
}
HETERO_INLINE F32x16 round_down_to_f16(F32x16 v) { return HETERO_BY_PART(F32x16, part_round_down_to_f16, v); }
HETERO_INLINE uint16x4_t bf16_bits(Part v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, odd), vdupq_n_u32(0x7fff));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
}
HETERO_INLINE void store_bf16(void* p, F32x16 v) {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) {
        const uint16x4_t halves = bf16_bits(v.part[i]);
        std::memcpy(static_cast<char*>(p) + 8 * i, &halves, sizeof halves);
    }
}

// 32 floats in memory, x0 y0 x1 y1 ..., taken apart.
HETERO_INLINE void load_pairs(const float* p, F32x16& x, F32x16& y) {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) {
        const float32x4x2_t pairs = vld2q_f32(p + 8 * i);
        x.part[i] = pairs.val[0];
        y.part[i] = pairs.val[1];
    }
}
// And put together.
HETERO_INLINE void store_pairs(float* p, F32x16 x, F32x16 y) {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) vst2q_f32(p + 8 * i, {{x.part[i], y.part[i]}});
}

// Sum of squares in double, added to `sum`.
struct F64x16 {
    float64x2_t part[8];
};
HETERO_INLINE F64x16 zero_f64() {
    const float64x2_t z = vdupq_n_f64(0);
    return {{z, z, z, z, z, z, z, z}};
}
HETERO_INLINE F64x16 add_square(F64x16 sum, F32x16 v) {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) {
        const float64x2_t low = vcvt_f64_f32(vget_low_f32(v.part[i])), high = vcvt_high_f64_f32(v.part[i]);
        sum.part[2 * i] = vfmaq_f64(sum.part[2 * i], low, low);
        sum.part[2 * i + 1] = vfmaq_f64(sum.part[2 * i + 1], high, high);
    }
    return sum;
}
HETERO_INLINE F64x16 add_wide(F64x16 sum, F32x16 v) {  // each lane itself
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) {
        sum.part[2 * i] = vaddq_f64(sum.part[2 * i], vcvt_f64_f32(vget_low_f32(v.part[i])));
        sum.part[2 * i + 1] = vaddq_f64(sum.part[2 * i + 1], vcvt_high_f64_f32(v.part[i]));
    }
    return sum;
}
HETERO_INLINE void store(double* p, F64x16 v) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) vst1q_f64(p + 2 * i, v.part[i]);
}
HETERO_INLINE double square_root(double x) { return vget_lane_f64(vsqrt_f64(vdup_n_f64(x)), 0); }

HETERO_INLINE float max_lane(F32x16 v) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v.part[0], v.part[1]), vmaxq_f32(v.part[2], v.part[3])));
}
HETERO_INLINE float min_lane(F32x16 v) {
    return vminvq_f32(vminq_f32(vminq_f32(v.part[0], v.part[1]), vminq_f32(v.part[2], v.part[3])));
}

// Sums of 16 lanes, always as the tree i + (i + 8), i + (i + 4), i + (i + 2), i + (i + 1).
HETERO_INLINE Part fold_to_4(F32x16 v) {
    return vaddq_f32(vaddq_f32(v.part[0], v.part[2]), vaddq_f32(v.part[1], v.part[3]));
}
HETERO_INLINE float sum(F32x16 v) {
    const Part s4 = fold_to_4(v);
    const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}
HETERO_INLINE Part sum_4(const F32x16 (&v)[4]) {
    const Part a = fold_to_4(v[0]), b = fold_to_4(v[1]), c = fold_to_4(v[2]), d = fold_to_4(v[3]);
    const float32x2_t a2 = vadd_f32(vget_low_f32(a), vget_high_f32(a)),
                      b2 = vadd_f32(vget_low_f32(b), vget_high_f32(b));
    const float32x2_t c2 = vadd_f32(vget_low_f32(c), vget_high_f32(c)),
                      d2 = vadd_f32(vget_low_f32(d), vget_high_f32(d));
    return vpaddq_f32(vcombine_f32(a2, b2), vcombine_f32(c2, d2));
}
// [i][j] gives lane 4 * i + j of the result.
HETERO_INLINE F32x16 sum_4x4(const F32x16 (&v)[4][4]) { return {{sum_4(v[0]), sum_4(v[1]), sum_4(v[2]), sum_4(v[3])}}; }
// out[i * stride + j] = the sum of v[i][j].
template <int N>
HETERO_INLINE void store_sums(const F32x16 (&v)[N][4], float* out, std::size_t stride) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) vst1q_f32(out + i * stride, sum_4(v[i]));
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
