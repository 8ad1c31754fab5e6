#include <algorithm>

#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {

void gemm(DType type, const void* w, std::size_t row_bytes, std::size_t row_begin, std::size_t row_end,
          std::size_t cols, const float* x, std::size_t x_stride, std::size_t n_tokens, float* y,
          std::size_t y_stride) {
    constexpr std::size_t kTile = 1024;  // weights; a multiple of every block
    constexpr std::size_t kTokens = 16;
    const auto* bytes = static_cast<const std::uint8_t*>(w);
    float tile[kTile];
    for (std::size_t row = row_begin; row < row_end; ++row) {
        for (std::size_t t0 = 0; t0 < n_tokens; t0 += kTokens) {
            const std::size_t tokens = std::min(kTokens, n_tokens - t0);
            double sum[kTokens] = {};
            for (std::size_t c0 = 0; c0 < cols; c0 += kTile) {
                const std::size_t n = std::min(kTile, cols - c0);
                dequantize(type, bytes + row * row_bytes + dtype_bytes(type, c0), tile, n);
                for (std::size_t t = 0; t < tokens; ++t) {
                    const float* xt = x + (t0 + t) * x_stride + c0;
                    for (std::size_t i = 0; i < n; ++i)
                        sum[t] += static_cast<double>(tile[i]) * static_cast<double>(xt[i]);
                }
            }
            for (std::size_t t = 0; t < tokens; ++t) y[(t0 + t) * y_stride + row] = static_cast<float>(sum[t]);
        }
    }
}

void gemv(DType type, const void* w, std::size_t row_bytes, std::size_t row_begin, std::size_t row_end,
          std::size_t cols, const float* x, float* y) {
    gemm(type, w, row_bytes, row_begin, row_end, cols, x, cols, 1, y, row_end);
}

}  // namespace hetero::kernels::ref
