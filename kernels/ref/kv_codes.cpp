#include <algorithm>
#include <cmath>
#include <cstring>

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
    const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
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

namespace {

struct Fp8Layout {
    int mantissa_bits, bias;
    float largest;
    std::uint8_t nan;  // without sign
    bool negative_zero;
};

constexpr Fp8Layout layout_of(Fp8 format) {
    switch (format) {
        case Fp8::e4m3fnuz:
            return {3, 8, 240, 0x80, false};
        case Fp8::e5m2:
            return {2, 15, 57344, 0x7F, true};
        default:
            return {3, 7, 448, 0x7F, true};
    }
}

std::uint8_t fp8_from(const Fp8Layout& layout, float value) {
    const bool negative = std::signbit(value);
    if (std::isnan(value)) return layout.nan;
    const float magnitude = std::fmin(std::fabs(value), layout.largest);
    // The unit in the last place: that of the smallest normal number for all below it.
    const int exponent = magnitude == 0 ? 1 - layout.bias : std::max(std::ilogb(magnitude), 1 - layout.bias);
    const double steps = std::nearbyint(std::ldexp(static_cast<double>(magnitude), layout.mantissa_bits - exponent));
    // steps counts units from 0: 2^mantissa_bits of them are the smallest normal number of this exponent
    const int code = static_cast<int>(steps) + ((exponent + layout.bias - 1) << layout.mantissa_bits);
    const bool sign = negative && (code != 0 || layout.negative_zero);
    return static_cast<std::uint8_t>(code | (sign ? 0x80 : 0));
}

}  // namespace

void quantize_fp8(Fp8 format, const float* x, float scale, std::uint8_t* q, std::size_t n) {
    const Fp8Layout layout = layout_of(format);
    for (std::size_t i = 0; i < n; ++i) q[i] = fp8_from(layout, scale == 0 ? x[i] * 0.0F : x[i] / scale);
}

}  // namespace hetero::kernels::ref
