#include "quant/ggml_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/api/ops.h"

namespace hetero::quant {
namespace {

using kernels::DType;

// Every block stores its scale first and stops there where f16 cannot hold it: an infinite one makes codes of NaN.

// f16 d, then 32 signed codes; rounded half away from zero.
bool block_q8_0(const float* x, std::byte* out) noexcept {
    float largest = 0;
    for (std::size_t i = 0; i < ggml_block; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float scale = largest / 127, inverse = reciprocal(scale);
    if (!store_half(scale, out)) return false;
    for (std::size_t i = 0; i < ggml_block; ++i) {
        out[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(std::round(x[i] * inverse)));
    }
    return true;
}

// Codes 0 to 15 in 16 bytes: element i in the low half of byte i, element 16 + i in the high half.
template <class Code>
void put_nibbles(const float* x, std::byte* out, Code code) noexcept {
    for (std::size_t i = 0; i < ggml_block / 2; ++i) {
        const unsigned low = code(x[i]), high = code(x[i + ggml_block / 2]);
        out[i] = static_cast<std::byte>(low | high << 4);
    }
}

// f16 d, then nibbles: the value of the largest magnitude becomes code 0, that is -8.
bool block_q4_0(const float* x, std::byte* out) noexcept {
    float largest = 0;
    for (std::size_t i = 0; i < ggml_block; ++i) {
        if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
    }
    const float scale = largest / -8, inverse = reciprocal(scale);
    if (!store_half(scale, out)) return false;
    put_nibbles(x, out + 2, [&](float value) {
        return static_cast<unsigned>(std::min(15, static_cast<int>(value * inverse + 8.5F)));  // never negative
    });
    return true;
}

// f16 d, f16 minimum, then nibbles. Of equal extremes the first counts, which tells 0 from -0 (minmax_element takes the
// last maximum).
bool block_q4_1(const float* x, std::byte* out) noexcept {
    const float lowest = *std::min_element(x, x + ggml_block);
    const float scale = (*std::max_element(x, x + ggml_block) - lowest) / 15, inverse = reciprocal(scale);
    if (!store_half(scale, out) || !store_half(lowest, out + 2)) return false;
    put_nibbles(x, out + 4, [&](float value) {
        return static_cast<unsigned>(std::min(15, static_cast<int>((value - lowest) * inverse + 0.5F)));
    });
    return true;
}

}  // namespace

bool store_half(float value, std::byte* out) noexcept {
    std::uint16_t bits = 0;
    kernels::ops().f32_to_f16(&value, &bits, 1);
    std::memcpy(out, &bits, sizeof bits);
    return (bits & 0x7C00U) != 0x7C00U;
}

bool quantize_ggml_blocks(DType type, const float* x, std::size_t n, std::byte* out) noexcept {
    const std::size_t bytes = kernels::dtype_info(type).block_bytes;
    const auto block = type == DType::q8_0 ? block_q8_0 : type == DType::q4_0 ? block_q4_0 : block_q4_1;
    for (std::size_t i = 0; i < n; i += ggml_block, out += bytes) {
        if (!block(x + i, out)) return false;
    }
    return true;
}

}  // namespace hetero::quant
