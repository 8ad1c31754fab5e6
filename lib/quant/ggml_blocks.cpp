#include "quant/ggml_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/api/ops.h"

namespace hetero::quant {
namespace {

using kernels::DType;

// Stores an f16 and says whether it is finite.
bool put_f16(float value, std::byte* out) noexcept {
    std::uint16_t bits = 0;
    kernels::ops().f32_to_f16(&value, &bits, 1);
    std::memcpy(out, &bits, sizeof bits);
    return (bits & 0x7C00U) != 0x7C00U;
}

float reciprocal(float scale) noexcept { return scale != 0 ? 1 / scale : 0; }

// f16 d, then 32 signed codes; rounded half away from zero.
bool block_q8_0(const float* x, std::byte* out) noexcept {
    float largest = 0;
    for (std::size_t i = 0; i < ggml_block; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float scale = largest / 127, inverse = reciprocal(scale);
    std::array<std::int8_t, ggml_block> codes;
    for (std::size_t i = 0; i < ggml_block; ++i) codes[i] = static_cast<std::int8_t>(std::round(x[i] * inverse));
    std::memcpy(out + 2, codes.data(), codes.size());
    return put_f16(scale, out);
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
    put_nibbles(x, out + 2, [&](float value) {
        return static_cast<unsigned>(std::min(15, static_cast<int>(value * inverse + 8.5F)));
    });
    return put_f16(scale, out);
}

// f16 d, f16 minimum, then nibbles.
bool block_q4_1(const float* x, std::byte* out) noexcept {
    const auto [min, max] = std::minmax_element(x, x + ggml_block);
    const float lowest = *min, scale = (*max - lowest) / 15, inverse = reciprocal(scale);
    put_nibbles(x, out + 4, [&](float value) {
        return static_cast<unsigned>(std::min(15, static_cast<int>((value - lowest) * inverse + 0.5F)));
    });
    return put_f16(scale, out) & put_f16(lowest, out + 2);
}

}  // namespace

bool quantize_ggml_blocks(DType type, const float* x, std::size_t n, std::byte* out) noexcept {
    const std::size_t bytes = kernels::dtype_info(type).block_bytes;
    bool stored = true;
    for (std::size_t i = 0; i < n; i += ggml_block, out += bytes) {
        stored &= type == DType::q8_0   ? block_q8_0(x + i, out)
                  : type == DType::q4_0 ? block_q4_0(x + i, out)
                                        : block_q4_1(x + i, out);
    }
    return stored;
}

}  // namespace hetero::quant
