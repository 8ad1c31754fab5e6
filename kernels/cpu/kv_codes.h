// Codes of the KV state, to the bits of ref/kv_codes.cpp: packing, Hadamard transform.
// Plain loops are vectorised by the compiler, once per instruction set. Included by generic.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

// Eight codes of Bits bits in a word: neighbours are merged, then pairs, then fours.
template <int Bits>
struct Packing {
    static constexpr std::uint64_t kOne = (1ULL << Bits) - 1, kTwo = (1ULL << 2 * Bits) - 1,
                                   kFour = (1ULL << 4 * Bits) - 1;
    static constexpr std::uint64_t kOnes = kOne * 0x0001000100010001ULL, kTwos = kTwo * 0x0000000100000001ULL;
    static constexpr std::uint64_t kSigns = (1ULL << (Bits - 1)) * 0x0101010101010101ULL;

    // One word, or eight side by side.
    using Words = std::uint64_t __attribute__((vector_size(64)));
    template <class Word>
    static HETERO_INLINE void pack(Word& x) {
        x = (x & kOnes) | (x >> (8 - Bits) & kOnes << Bits);
        x = (x & kTwos) | (x >> (16 - 2 * Bits) & kTwos << 2 * Bits);
        x = (x & kFour) | (x >> (32 - 4 * Bits) & kFour << 4 * Bits);
    }
    static HETERO_INLINE std::uint64_t unpack(std::uint64_t packed, bool is_signed) {
        std::uint64_t x = packed & ((kFour << 4 * Bits) | kFour);
        x = (x & kFour) | (x & kFour << 4 * Bits) << (32 - 4 * Bits);
        x = (x & kTwos) | (x & kTwos << 2 * Bits) << (16 - 2 * Bits);
        x = (x & kOnes) | (x & kOnes << Bits) << (8 - Bits);
        // The sign into the bits above: (x ^ sign) - sign in each byte, whose highest bit keeps it from its neighbours.
        const std::uint64_t signs = is_signed ? kSigns : 0, high = 0x8080808080808080ULL;
        return (((x ^ signs) | high) - signs) ^ high;
    }
    // The bytes of a word that hold eight codes, or more where that is a single access.
    static constexpr std::size_t kAccess = Bits > 4 ? 8 : 4;
    static void pack_all(const std::uint8_t* codes, std::uint8_t* packed, std::size_t n) {
        std::uint64_t word = 0;
        if constexpr (Bits == 4) {
            for (; n >= 32; n -= 32, codes += 32, packed += 16)
                bytes_store(packed,
                            join_nibbles(bits_and(bytes_load(codes), 15), bits_and(bytes_load(codes + 16), 15)));
        }
        for (; n >= 64; n -= 64, codes += 64, packed += std::size_t{8} * Bits) {
            Words words;
            std::memcpy(&words, codes, 64);
            pack(words);
            std::uint64_t each[8];
            std::memcpy(each, &words, 64);
            for (std::size_t i = 0; i < 7; ++i)
                std::memcpy(packed + i * Bits, &each[i], kAccess);  // the next one's too
            std::memcpy(packed + std::size_t{7} * Bits, &each[7], Bits);
        }
        for (; n >= 8; n -= 8, codes += 8, packed += Bits) {
            std::memcpy(&word, codes, 8);
            pack(word);
            std::memcpy(packed, &word, Bits);
        }
        if (n == 0) return;
        word = 0;
        std::memcpy(&word, codes, n);
        pack(word);
        std::memcpy(packed, &word, (n * Bits + 7) / 8);
    }
    static void unpack_all(bool is_signed, const std::uint8_t* packed, std::uint8_t* codes, std::size_t n) {
        std::uint64_t word = 0;
        if constexpr (Bits == 4) {
            const U8x16 sign = bytes_splat(is_signed ? 8 : 0);
            for (; n >= 32; n -= 32, codes += 32, packed += 16) {
                const U8x16 both = bytes_load(packed), even = bits_and(both, 15), odd = bits_at(both, 4, 15);
                bytes_store(codes, bytes_sub(bytes_xor(zip_low(even, odd), sign), sign));
                bytes_store(codes + 16, bytes_sub(bytes_xor(zip_high(even, odd), sign), sign));
            }
        }
        for (; n >= 72; n -= 64, codes += 64, packed += std::size_t{8} * Bits) {  // the next one's bits are read, too
            std::uint64_t words[8];
            for (std::size_t i = 0; i < 8; ++i) {
                std::uint64_t some = 0;
                std::memcpy(&some, packed + i * Bits, kAccess);
                words[i] = unpack(some, is_signed);
            }
            std::memcpy(codes, words, 64);
        }
        for (; n >= 8; n -= 8, codes += 8, packed += Bits) {
            word = 0;
            std::memcpy(&word, packed, Bits);
            word = unpack(word, is_signed);
            std::memcpy(codes, &word, 8);
        }
        if (n == 0) return;
        word = 0;
        std::memcpy(&word, packed, (n * Bits + 7) / 8);
        word = unpack(word, is_signed);
        std::memcpy(codes, &word, n);
    }
};

void pack_bits(int bits, const std::uint8_t* codes, std::uint8_t* packed, std::size_t n) {
    switch (bits) {
        case 2:
            return Packing<2>::pack_all(codes, packed, n);
        case 3:
            return Packing<3>::pack_all(codes, packed, n);
        case 4:
            return Packing<4>::pack_all(codes, packed, n);
        case 5:
            return Packing<5>::pack_all(codes, packed, n);
        case 6:
            return Packing<6>::pack_all(codes, packed, n);
        default:
            return Packing<7>::pack_all(codes, packed, n);
    }
}

void unpack_bits(int bits, bool is_signed, const std::uint8_t* packed, std::uint8_t* codes, std::size_t n) {
    switch (bits) {
        case 2:
            return Packing<2>::unpack_all(is_signed, packed, codes, n);
        case 3:
            return Packing<3>::unpack_all(is_signed, packed, codes, n);
        case 4:
            return Packing<4>::unpack_all(is_signed, packed, codes, n);
        case 5:
            return Packing<5>::unpack_all(is_signed, packed, codes, n);
        case 6:
            return Packing<6>::unpack_all(is_signed, packed, codes, n);
        default:
            return Packing<7>::unpack_all(is_signed, packed, codes, n);
    }
}

// The strides 1, 2, 4 and 8 of 16 values: lane i becomes v[i ^ stride] + v[i], with -v[i] where bit `stride` of i is
// set.
struct LaneButterflies {
    I32x16 partner[4];
    F32x16 sign[4];
};
HETERO_INLINE LaneButterflies lane_butterflies() {
    LaneButterflies out;
    for (int stage = 0; stage < 4; ++stage) {
        float partner[kLanes], sign[kLanes];
        for (int i = 0; i < 16; ++i) {
            partner[i] = static_cast<float>(i ^ 1 << stage);
            sign[i] = (i >> stage & 1) != 0 ? -1.0F : 1.0F;
        }
        out.partner[stage] = round_to_int(load(partner));
        out.sign[stage] = load(sign);
    }
    return out;
}
HETERO_INLINE F32x16 butterflies(F32x16 v, const LaneButterflies& lanes) {
#pragma GCC unroll 4
    for (int stage = 0; stage < 4; ++stage) v = fma(v, lanes.sign[stage], lookup(v, lanes.partner[stage]));
    return v;
}

// A block of 16 * N values in registers.
template <int N>
HETERO_INLINE void rotate_registers(F32x16 (&v)[N], F32x16 factor, const LaneButterflies& lanes) {
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) v[i] = butterflies(v[i], lanes);
#pragma GCC unroll 4
    for (int stride = 1; stride < N; stride *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            if ((i & stride) != 0) continue;
            const F32x16 a = v[i], b = v[i + stride];
            v[i] = a + b;
            v[i + stride] = a - b;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) v[i] = v[i] * factor;
}
template <int N>
HETERO_INLINE void hadamard_blocks(const float* x, float* y, std::size_t blocks, F32x16 factor,
                                   const LaneButterflies& lanes) {
    for (std::size_t block = 0; block < blocks; ++block, x += kLanes * N, y += kLanes * N) {
        F32x16 v[N];
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) v[i] = load(x + kLanes * i);
        rotate_registers<N>(v, factor, lanes);
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) store(y + kLanes * i, v[i]);
    }
}

void hadamard(const float* x, float* y, std::size_t blocks, std::size_t n) {
    if (n < kLanes) return ref::hadamard(x, y, blocks, n);
    const F32x16 factor = splat(static_cast<float>(1 / __builtin_sqrt(static_cast<double>(n))));
    const LaneButterflies lanes = lane_butterflies();
    switch (n / kLanes) {
        case 1:
            return hadamard_blocks<1>(x, y, blocks, factor, lanes);
        case 2:
            return hadamard_blocks<2>(x, y, blocks, factor, lanes);
        case 4:
            return hadamard_blocks<4>(x, y, blocks, factor, lanes);
        case 8:
            return hadamard_blocks<8>(x, y, blocks, factor, lanes);
        default:
            break;
    }
    for (std::size_t block = 0; block < blocks; ++block, x += n, y += n) {
        for (std::size_t i = 0; i < n; i += kLanes) store(y + i, butterflies(load(x + i), lanes));
        for (std::size_t stride = kLanes; stride < n; stride *= 2) {
            const bool last = 2 * stride == n;
            for (std::size_t i = 0; i < n; i += kLanes) {
                if ((i & stride) != 0) continue;
                const F32x16 a = load(y + i), b = load(y + i + stride);
                store(y + i, last ? (a + b) * factor : a + b);
                store(y + i + stride, last ? (a - b) * factor : a - b);
            }
        }
    }
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
