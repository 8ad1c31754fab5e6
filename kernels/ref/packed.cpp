// Products of packed weights and 8-bit activations, as api/packed.h and api/ops.h define them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {
namespace {

using Byte = std::uint8_t;

void quantize_block(const float* x, std::size_t n, std::int8_t* q, float& scale, float& weighted, std::int32_t& sum) {
    std::uint32_t largest_bits = 0;  // of magnitudes: in the order of the numbers, NaN above all
    for (std::size_t c = 0; c < n; ++c) largest_bits = std::max(largest_bits, std::bit_cast<std::uint32_t>(x[c]) << 1);
    const float largest = std::bit_cast<float>(largest_bits >> 1);
    const bool finite = std::isfinite(largest), zero = largest < 0x1p-100F;
    const float inverse = finite && !zero ? 127 / largest : 0;
    sum = 0;
    for (std::size_t c = 0; c < packed_cols; ++c) {
        q[c] = c < n && inverse > 0 ? static_cast<std::int8_t>(std::nearbyint(x[c] * inverse)) : std::int8_t{0};
        sum += q[c];
    }
    scale = !finite ? std::numeric_limits<float>::quiet_NaN() : zero ? 0 : largest / 127;
    weighted = scale * static_cast<float>(sum);
}

int code(const PackingInfo& info, const Byte* block, std::size_t r, std::size_t c) {
    if (info.bits == 8) return block[64 * (c / 4) + 4 * r + c % 4];
    const Byte both = block[64 * (c % 16 / 4) + 4 * r + c % 4];
    const int low = c < 16 ? both & 0xf : both >> 4;
    if (info.bits == 4) return low;
    return low | ((load<std::uint64_t>(block + 256 + 8 * (c / 4)) >> (4 * r + c % 4)) & 1) << 4;
}

// Where a token's part of a block lies.
struct Place {
    std::size_t q, scale, weighted, sum;  // bytes from the start
};

Place place_of(std::size_t token, std::size_t block, std::size_t n_tokens, std::size_t cols) {
    const std::size_t first = token / activation_tile * activation_tile, i = token - first;
    const std::size_t m = std::min(activation_tile, n_tokens - first);
    const std::size_t start = activation_bytes(first, cols) + block * m * activation_block_bytes;
    const std::size_t numbers = start + m * packed_cols + 4 * i;
    return {start + i * packed_cols, numbers, numbers + 4 * m, numbers + 8 * m};
}

}  // namespace

void quantize_activations(const float* x, std::size_t x_stride, std::size_t n_tokens, std::size_t cols, void* out,
                          float* residual) {
    auto* bytes = static_cast<Byte*>(out);
    for (std::size_t t = 0; t < n_tokens; ++t, x += x_stride)
        for (std::size_t b = 0; b < packed_blocks(cols); ++b) {
            const Place place = place_of(t, b, n_tokens, cols);
            const std::size_t first = b * packed_cols;
            float scale = 0, weighted = 0;
            std::int32_t sum = 0;
            quantize_block(x + first, std::min(packed_cols, cols - first),
                           reinterpret_cast<std::int8_t*>(bytes + place.q), scale, weighted, sum);
            for (std::size_t c = first; residual && c < std::min(cols, first + packed_cols); ++c)
                residual[t * cols + c] =
                    std::fma(-scale, static_cast<float>(load<std::int8_t>(bytes + place.q + c - first)), x[c]);
            std::memcpy(bytes + place.scale, &scale, 4);
            std::memcpy(bytes + place.weighted, &weighted, 4);
            std::memcpy(bytes + place.sum, &sum, 4);
        }
}

float packed_weight(Packing packing, const void* packed, std::size_t row, std::size_t col, std::size_t cols) {
    const PackingInfo& info = packing_info(packing);
    const std::size_t r = row % packed_rows, index = row / packed_rows * packed_blocks(cols) + col / packed_cols;
    const Byte* block = static_cast<const Byte*>(packed) + index * info.block_bytes;
    const Byte* scales = block + info.code_bytes + 2 * r;
    const float min = info.has_min ? f16_to_f32(load<std::uint16_t>(scales + 2 * packed_rows)) : 0;
    return std::fma(static_cast<float>(code(info, block, r, col % packed_cols) - info.zero),
                    f16_to_f32(load<std::uint16_t>(scales)), min);
}

void packed_gemm(Packing packing, const void* packed, std::size_t row_begin, std::size_t row_end, std::size_t cols,
                 const void* activations, const void* residual, std::size_t n_tokens, float* y, std::size_t y_stride) {
    const PackingInfo& info = packing_info(packing);
    const std::size_t blocks = packed_blocks(cols), group_bytes = blocks * info.block_bytes;
    const auto product = [&](const Byte* x, std::size_t t, std::size_t row) {
        const std::size_t r = row % packed_rows;
        const Byte* block = static_cast<const Byte*>(packed) + row / packed_rows * group_bytes;
        float sum = 0, low = 0;
        for (std::size_t b = 0; b < blocks; ++b, block += info.block_bytes) {
            const Place place = place_of(t, b, n_tokens, cols);
            std::int32_t dot = 0;
            for (std::size_t c = 0; c < packed_cols; ++c)
                dot += (code(info, block, r, c) - info.zero) * load<std::int8_t>(x + place.q + c);
            const float scale = f16_to_f32(load<std::uint16_t>(block + info.code_bytes + 2 * r));
            sum = std::fma(static_cast<float>(dot), scale * load<float>(x + place.scale), sum);
            if (!info.has_min) continue;
            const float min = f16_to_f32(load<std::uint16_t>(block + info.code_bytes + 32 + 2 * r));
            low = std::fma(min, load<float>(x + place.weighted), low);
        }
        return sum + low;
    };
    const auto *x = static_cast<const Byte*>(activations), *rest = static_cast<const Byte*>(residual);
    for (std::size_t t = 0; t < n_tokens; ++t)
        for (std::size_t row = row_begin; row < row_end; ++row) {
            float& out = y[t * y_stride + row];
            out = product(x, t, row);
            if (rest != nullptr) out += product(rest, t, row);
        }
}

}  // namespace hetero::kernels::ref
