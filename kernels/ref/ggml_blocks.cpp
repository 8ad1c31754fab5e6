// Every block stores its scale first and stops there where f16 cannot hold it: an infinite one makes codes of NaN.
#include <algorithm>
#include <cmath>

#include "kernels/api/dtype.h"
#include "kernels/api/ggml_scale.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {
namespace {

constexpr std::size_t block_values = 32;

// f16 d, then 32 signed codes; rounded half away from zero.
bool block_q8_0(const float* x, std::uint8_t* out) {
    float largest = 0;
    for (std::size_t i = 0; i < block_values; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float scale = largest / 127, inverse = ggml_reciprocal(scale);
    if (!store_ggml_scale(scale, out)) return false;
    for (std::size_t i = 0; i < block_values; ++i)
        out[2 + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(std::round(x[i] * inverse)));
    return true;
}

// Codes 0 to 15 in 16 bytes: element i in the low half of byte i, element 16 + i in the high half.
template <class Code>
void put_nibbles(const float* x, std::uint8_t* out, Code code) {
    for (std::size_t i = 0; i < block_values / 2; ++i) {
        const unsigned low = code(x[i]), high = code(x[i + block_values / 2]);
        out[i] = static_cast<std::uint8_t>(low | high << 4);
    }
}

// f16 d, then nibbles: the value of the largest magnitude becomes code 0, that is -8.
bool block_q4_0(const float* x, std::uint8_t* out) {
    float largest = 0;
    for (std::size_t i = 0; i < block_values; ++i) {
        if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
    }
    const float scale = largest / -8, inverse = ggml_reciprocal(scale);
    if (!store_ggml_scale(scale, out)) return false;
    put_nibbles(x, out + 2, [&](float value) {
        return static_cast<unsigned>(std::min(15, static_cast<int>(value * inverse + 8.5F)));  // never negative
    });
    return true;
}

// f16 d, f16 minimum, then nibbles. Of equal extremes the first counts, which tells 0 from -0 (minmax_element takes the
// last maximum).
bool block_q4_1(const float* x, std::uint8_t* out) {
    const float lowest = *std::min_element(x, x + block_values);
    const float scale = (*std::max_element(x, x + block_values) - lowest) / 15, inverse = ggml_reciprocal(scale);
    if (!store_ggml_scale(scale, out) || !store_ggml_scale(lowest, out + 2)) return false;
    put_nibbles(x, out + 4, [&](float value) {
        return static_cast<unsigned>(std::min(15, static_cast<int>((value - lowest) * inverse + 0.5F)));
    });
    return true;
}

}  // namespace

bool quantize_blocks(DType type, const float* x, std::size_t n, void* out) {
    const std::size_t bytes = dtype_info(type).block_bytes;
    const auto block = type == DType::q8_0 ? block_q8_0 : type == DType::q4_0 ? block_q4_0 : block_q4_1;
    auto* to = static_cast<std::uint8_t*>(out);
    for (std::size_t i = 0; i < n; i += block_values, to += bytes) {
        if (!block(x + i, to)) return false;
    }
    return true;
}

}  // namespace hetero::kernels::ref
