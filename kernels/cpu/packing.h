// Reads the codes of packed weights (api/packed.h). Included after vec_*.h and dot_*.h, once per instruction set.
#pragma once
#include "kernels/api/packed.h"

namespace hetero::kernels::HETERO_ISA {
namespace {

using Byte = std::uint8_t;

template <int Bits, int Zero, bool Min>
struct Pack {
    static constexpr int kBits = Bits, kZero = Zero;
    static constexpr bool kMin = Min;
    static constexpr std::size_t kCodeBytes = Bits == 8 ? 512 : Bits == 5 ? 320 : 256;
    static constexpr std::size_t kBlockBytes = kCodeBytes + (Min ? 64 : 32);
    static constexpr int kTaken = Bits == 8 ? kWideZero : 0;  // what dot() subtracts from codes by itself

    // Codes of columns 4 j + i of the block, rows of one part.
    static HETERO_INLINE Words codes(const Byte* block, int j, int part) {
        const std::size_t offset = static_cast<std::size_t>(part) * kWordBytes;
        if constexpr (Bits == 8) {
            return words_load(block + 64 * j + offset);
        } else {
            const Words both = words_load(block + 64 * (j % 4) + offset);
            const Words low = j < 4 ? low_nibbles(both) : high_nibbles(both);
            if constexpr (Bits == 4) return low;
            return add_high_bits(low, block + 256 + 8 * j + offset / 8);
        }
    }
    static HETERO_INLINE Words dot(Words sum, Words codes, Words x) {
        return Bits == 8 ? dot_wide(sum, codes, x) : dot_narrow(sum, codes, x);
    }
};

template <class Visit>
HETERO_INLINE void visit_packing(Packing packing, Visit visit) {
    switch (packing) {
        case Packing::u4:
            return visit(Pack<4, 8, false>{});
        case Packing::u4_min:
            return visit(Pack<4, 0, true>{});
        case Packing::u5:
            return visit(Pack<5, 16, false>{});
        case Packing::u5_min:
            return visit(Pack<5, 0, true>{});
        case Packing::u8:
            return visit(Pack<8, 128, false>{});
        default:
            return visit(Pack<8, 0, true>{});
    }
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
