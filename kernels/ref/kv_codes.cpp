#include <cstring>

#include "kernels/common/codes.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {

void pack_bits(int bits, const std::uint8_t* codes, std::uint8_t* packed, std::size_t n) {
    const auto width = static_cast<std::size_t>(bits);
    if (n > 0) std::memset(packed, 0, (n * width + 7) / 8);
    for (std::size_t at = 0; at < n * width; ++at) {
        const unsigned bit = codes[at / width] >> (at % width) & 1U;
        packed[at / 8] = static_cast<std::uint8_t>(packed[at / 8] | bit << at % 8);
    }
}

void unpack_bits(int bits, bool is_signed, const std::uint8_t* packed, std::uint8_t* codes, std::size_t n) {
    const auto width = static_cast<std::size_t>(bits);
    for (std::size_t i = 0; i < n; ++i) {
        unsigned code = 0;
        for (std::size_t bit = 0; bit < width; ++bit) {
            const std::size_t at = i * width + bit;
            code |= (packed[at / 8] >> at % 8 & 1U) << bit;
        }
        const bool negative = is_signed && (code >> (width - 1) & 1U) != 0;
        codes[i] = static_cast<std::uint8_t>(negative ? code - (1U << width) : code);
    }
}

void hadamard(const float* x, float* y, std::size_t blocks, std::size_t n) {
    const float factor = hadamard_factor(n);
    if (y != x && blocks > 0) std::memcpy(y, x, blocks * n * sizeof(float));
    for (float* block = y; block != y + blocks * n; block += n) {
        for (std::size_t stride = 1; stride < n; stride *= 2) {
            for (std::size_t i = 0; i < n; ++i) {
                if ((i & stride) != 0) continue;
                const float a = block[i], b = block[i + stride];
                block[i] = a + b;
                block[i + stride] = a - b;
            }
        }
        for (std::size_t i = 0; i < n; ++i) block[i] *= factor;
    }
}

}  // namespace hetero::kernels::ref
