// Weight formats: each decodes one block into runs of 16 values, in order: sink(run, values). The values are bit for
// bit those of ref/dequantize.cpp, where the layouts are explained. Included by generic.h, once per instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

using Byte = std::uint8_t;

HETERO_INLINE U8x16 bits_and(U8x16 a, int mask) { return bytes_and(a, bytes_splat(mask)); }
// (each byte >> shift) & mask; mask must clear what comes in from the neighbouring byte.
HETERO_INLINE U8x16 bits_at(U8x16 a, int shift, int mask) { return bits_and(halves_shift_right(a, shift), mask); }
// (each byte & mask) << shift, for results below 256.
HETERO_INLINE U8x16 bits_up(U8x16 a, int shift, int mask) { return halves_shift_left(bits_and(a, mask), shift); }
HETERO_INLINE F32x16 unsigned_values(U8x16 codes) { return to_float(widen_unsigned(codes)); }
HETERO_INLINE F32x16 signed_values(U8x16 codes) { return to_float(widen_signed(codes)); }
HETERO_INLINE F32x16 signed_values(U8x16 codes, int zero) {
    return to_float(widen_signed(bytes_sub(codes, bytes_splat(zero))));
}

template <class T>
HETERO_INLINE T bits_from(const Byte* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

HETERO_INLINE float f16_at(const Byte* p) { return kF16Table[bits_from<std::uint16_t>(p)]; }
HETERO_INLINE F32x16 splat_f16(const Byte* p) { return splat(f16_at(p)); }

// 16 bytes of two nibbles each, looked up in the 16 values they can take: the low ones are run 0, the high ones run 1.
template <class Sink>
HETERO_INLINE void nibble_runs(const Byte* qs, F32x16 table, Sink sink) {
    const I32x16 packed = widen_unsigned(bytes_load(qs));
    sink(0, lookup(table, packed));
    sink(1, lookup(table, shift_right<4>(packed)));
}

struct F32 {
    static constexpr std::size_t kElems = 16, kBytes = 64;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        sink(0, load(reinterpret_cast<const float*>(b)));
    }
};

struct F16 {
    static constexpr std::size_t kElems = 16, kBytes = 32;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        sink(0, load_f16(b));
    }
};

struct BF16 {
    static constexpr std::size_t kElems = 16, kBytes = 32;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        sink(0, load_bf16(b));
    }
};

struct I8 {
    static constexpr std::size_t kElems = 16, kBytes = 16;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        sink(0, signed_values(bytes_load(b)));
    }
};

struct Q8_0 {
    static constexpr std::size_t kElems = 32, kBytes = 34;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        const F32x16 d = splat_f16(b);
        sink(0, signed_values(bytes_load(b + 2)) * d);
        sink(1, signed_values(bytes_load(b + 18)) * d);
    }
};

struct Q4_0 {
    static constexpr std::size_t kElems = 32, kBytes = 18;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        nibble_runs(b + 2, (iota() - splat(8)) * splat_f16(b), sink);
    }
};

struct Q4_1 {
    static constexpr std::size_t kElems = 32, kBytes = 20;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        nibble_runs(b + 4, iota() * splat_f16(b) + splat_f16(b + 2), sink);
    }
};

struct IQ4_NL {
    static constexpr std::size_t kElems = 32, kBytes = 18;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        alignas(64) static constexpr float kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                          1,    13,   25,  38,  53,  69,  89,  113};
        nibble_runs(b + 2, splat_f16(b) * load(kValues), sink);
    }
};

struct Q5_0 {
    static constexpr std::size_t kElems = 32, kBytes = 22;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        const F32x16 d = splat_f16(b);
        const U8x16 qs = bytes_load(b + 6);
        sink(0, signed_values(bytes_or(bits_and(qs, 0xf), expand_bits(bits_from<std::uint16_t>(b + 2), 16)), 16) * d);
        sink(1, signed_values(bytes_or(bits_at(qs, 4, 0xf), expand_bits(bits_from<std::uint16_t>(b + 4), 16)), 16) * d);
    }
};

struct Q5_1 {
    static constexpr std::size_t kElems = 32, kBytes = 24;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        const F32x16 d = splat_f16(b), m = splat_f16(b + 2);
        const U8x16 qs = bytes_load(b + 8);
        sink(0, unsigned_values(bytes_or(bits_and(qs, 0xf), expand_bits(bits_from<std::uint16_t>(b + 4), 16))) * d + m);
        sink(1,
             unsigned_values(bytes_or(bits_at(qs, 4, 0xf), expand_bits(bits_from<std::uint16_t>(b + 6), 16))) * d + m);
    }
};

struct Q2_K {
    static constexpr std::size_t kElems = 256, kBytes = 84;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        alignas(64) float scale[16], min[16];
        const U8x16 packed = bytes_load(b);
        store(scale, splat_f16(b + 80) * unsigned_values(bits_and(packed, 0xf)));
        store(min, splat_f16(b + 82) * unsigned_values(bits_at(packed, 4, 0xf)));
#pragma GCC unroll 16
        for (int run = 0; run < 16; ++run) {
            const U8x16 qs = bytes_load(b + 16 + 32 * (run / 8) + 16 * (run % 2));
            const F32x16 q = unsigned_values(bits_at(qs, 2 * (run / 2 % 4), 3));
            sink(run, splat(scale[run]) * q - splat(min[run]));
        }
    }
};

struct Q3_K {
    static constexpr std::size_t kElems = 256, kBytes = 110;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        // The 12 bytes of scales: low halves are nibbles of bytes 0..7, high pairs of bits lie in bytes 8..11.
        const auto low = bits_from<std::uint64_t>(b + 96);
        const std::uint64_t high = bits_from<std::uint32_t>(b + 104);
        constexpr std::uint64_t kNibbles = 0x0f0f0f0f0f0f0f0f, kPairs = 0x0303030303030303;
        const std::uint64_t pairs0 = (high | high >> 2 << 32) & kPairs, pairs1 = (high >> 4 | high >> 6 << 32) & kPairs;
        const std::uint64_t codes0 = (low & kNibbles) | pairs0 << 4, codes1 = (low >> 4 & kNibbles) | pairs1 << 4;
        const U8x16 codes = bytes_from(codes0, codes1);
        alignas(64) float scale[16];
        store(scale, splat_f16(b + 108) * signed_values(codes, 32));
#pragma GCC unroll 16
        for (int run = 0; run < 16; ++run) {
            const U8x16 qs = bytes_load(b + 32 + 32 * (run / 8) + 16 * (run % 2));
            const U8x16 hmask = bytes_load(b + 16 * (run % 2));
            const U8x16 high_bit = halves_shift_left(bits_at(hmask, run / 2, 1), 2);  // set: add 4
            sink(run, splat(scale[run]) * signed_values(bytes_or(bits_at(qs, 2 * (run / 2 % 4), 3), high_bit), 4));
        }
    }
};

// The 8 six-bit scales and mins of Q4_K and Q5_K, times d and dmin.
struct ScaleMin {
    alignas(64) float scale_min[16];
    HETERO_INLINE F32x16 scale(int group) const { return splat(scale_min[group]); }
    HETERO_INLINE F32x16 min(int group) const { return splat(scale_min[8 + group]); }
};

HETERO_INLINE void k4_scale_min(const Byte* b, ScaleMin& out) {
    const auto w0 = bits_from<std::uint32_t>(b + 4), w1 = bits_from<std::uint32_t>(b + 8),
               w2 = bits_from<std::uint32_t>(b + 12);
    constexpr std::uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTwo = 0x03030303;
    const std::uint64_t scales = (w0 & kSix) | std::uint64_t{(w2 & kFour) | (w0 >> 6 & kTwo) << 4} << 32;
    const std::uint64_t mins = (w1 & kSix) | std::uint64_t{(w2 >> 4 & kFour) | (w1 >> 6 & kTwo) << 4} << 32;
    const F32x16 factor = where_between(0, 8, splat_f16(b), splat_f16(b + 2));
    store(out.scale_min, factor * unsigned_values(bytes_from(scales, mins)));
}

struct Q4_K {
    static constexpr std::size_t kElems = 256, kBytes = 144;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        ScaleMin sm;
        k4_scale_min(b, sm);
#pragma GCC unroll 4
        for (int chunk = 0; chunk < 4; ++chunk) {  // 64 values: 32 low nibbles, then 32 high ones
            const I32x16 a = widen_unsigned(bytes_load(b + 16 + 32 * chunk));
            const I32x16 c = widen_unsigned(bytes_load(b + 32 + 32 * chunk));
            const F32x16 low = sm.scale(2 * chunk) * iota() - sm.min(2 * chunk);
            const F32x16 high = sm.scale(2 * chunk + 1) * iota() - sm.min(2 * chunk + 1);
            sink(4 * chunk, lookup(low, a));
            sink(4 * chunk + 1, lookup(low, c));
            sink(4 * chunk + 2, lookup(high, shift_right<4>(a)));
            sink(4 * chunk + 3, lookup(high, shift_right<4>(c)));
        }
    }
};

struct Q5_K {
    static constexpr std::size_t kElems = 256, kBytes = 176;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        ScaleMin sm;
        k4_scale_min(b, sm);
#pragma GCC unroll 16
        for (int run = 0; run < 16; ++run) {
            const int group = run / 2;
            const U8x16 qs = bytes_load(b + 48 + 32 * (group / 2) + 16 * (run % 2));
            const U8x16 high = halves_shift_left(bits_at(bytes_load(b + 16 + 16 * (run % 2)), group, 1), 4);
            const U8x16 low = bits_at(qs, 4 * (group % 2), 0xf);
            sink(run, sm.scale(group) * unsigned_values(bytes_or(low, high)) - sm.min(group));
        }
    }
};

struct Q6_K {
    static constexpr std::size_t kElems = 256, kBytes = 210;
    template <class Sink>
    static HETERO_INLINE void decode(const Byte* b, Sink sink) {
        alignas(64) float scale[16];
        store(scale, splat_f16(b + 208) * signed_values(bytes_load(b + 192)));
#pragma GCC unroll 16
        for (int run = 0; run < 16; ++run) {
            const int half = run / 8, plane = run / 2 % 4;
            const U8x16 ql = bytes_load(b + 64 * half + 16 * (run % 4));
            const U8x16 qh = bytes_load(b + 128 + 32 * half + 16 * (run % 2));
            const U8x16 low = bits_at(ql, plane < 2 ? 0 : 4, 0xf);
            const U8x16 high = bits_up(halves_shift_right(qh, 2 * plane), 4, 3);
            sink(run, splat(scale[run]) * signed_values(bytes_or(low, high), 32));
        }
    }
};

// Calls visit(Format{}) for a weight type; false where this file has no decoder for it.
template <class Visit>
bool visit_format(DType type, Visit visit) {
    switch (type) {
        case DType::f32:
            visit(F32{});
            return true;
        case DType::f16:
            visit(F16{});
            return true;
        case DType::bf16:
            visit(BF16{});
            return true;
        case DType::i8:
            visit(I8{});
            return true;
        case DType::q8_0:
            visit(Q8_0{});
            return true;
        case DType::q4_0:
            visit(Q4_0{});
            return true;
        case DType::q4_1:
            visit(Q4_1{});
            return true;
        case DType::q5_0:
            visit(Q5_0{});
            return true;
        case DType::q5_1:
            visit(Q5_1{});
            return true;
        case DType::q2_k:
            visit(Q2_K{});
            return true;
        case DType::q3_k:
            visit(Q3_K{});
            return true;
        case DType::q4_k:
            visit(Q4_K{});
            return true;
        case DType::q5_k:
            visit(Q5_K{});
            return true;
        case DType::q6_k:
            visit(Q6_K{});
            return true;
        case DType::iq4_nl:
            visit(IQ4_NL{});
            return true;
        default:
            return false;
    }
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
