#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/common/rope.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {

void rms_norm(const float* x, const float* w, float* y, std::size_t n, float eps) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    const double inverse = 1 / std::sqrt(sum / static_cast<double>(n) + static_cast<double>(eps));
    for (std::size_t i = 0; i < n; ++i)
        y[i] = static_cast<float>(static_cast<double>(x[i]) * inverse * static_cast<double>(w[i]));
}

void layer_norm(const float* x, const float* w, const float* b, float* y, std::size_t n, float eps) {
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
    const double mean = sum / static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i) {
        const double centred = static_cast<double>(x[i]) - mean;
        squares += centred * centred;
    }
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(n) + static_cast<double>(eps));
    for (std::size_t i = 0; i < n; ++i)
        y[i] = static_cast<float>((static_cast<double>(x[i]) - mean) * inverse * static_cast<double>(w[i]) +
                                  static_cast<double>(b[i]));
}

namespace {

// a0 b0 a1 b1 ... becomes a0 a1 ... b0 b1 ..., in place.
void split_pairs(float* x, std::size_t n_pairs) {
    if (n_pairs < 2) return;
    const std::size_t left = n_pairs / 2, right = n_pairs - left;
    split_pairs(x, left);
    split_pairs(x + 2 * left, right);
    std::rotate(x + left, x + 2 * left, x + 2 * left + right);
}

}  // namespace

void rope(const float* src, float* dst, std::size_t n_heads, std::size_t head_dim, const RopeTable& table,
          std::size_t position, RopePairing pairing) {
    const std::size_t n_pairs = table.n_pairs;
    const float* cos = table.cos + position * n_pairs;
    const float* sin = table.sin + position * n_pairs;
    for (std::size_t h = 0; h < n_heads; ++h, src += head_dim, dst += head_dim) {
        if (pairing == RopePairing::half_split) {
            for (std::size_t i = 0; i < n_pairs; ++i)
                rotate_pair(src[i], src[i + n_pairs], cos[i], sin[i], dst[i], dst[i + n_pairs]);
        } else {
            for (std::size_t i = 0; i < n_pairs; ++i)
                rotate_pair(src[2 * i], src[2 * i + 1], cos[i], sin[i], dst[2 * i], dst[2 * i + 1]);
            split_pairs(dst, n_pairs);
        }
        if (src != dst)
            for (std::size_t i = 2 * n_pairs; i < head_dim; ++i) dst[i] = src[i];
    }
}

void silu_mul(const float* gate, const float* up, float* y, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
        const double g = static_cast<double>(gate[i]);
        y[i] = static_cast<float>(g / (1 + std::exp(-g)) * static_cast<double>(up[i]));
    }
}

void gelu_tanh(const float* x, float* y, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
        const double v = static_cast<double>(x[i]);
        const double u = std::sqrt(2 * std::numbers::inv_pi) * (v + 0.044715 * v * v * v);
        y[i] = static_cast<float>(v / 2 * (1 + std::tanh(u)));
    }
}

void gelu_erf(const float* x, float* y, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
        const double v = static_cast<double>(x[i]);
        y[i] = static_cast<float>(v / 2 * std::erfc(-v / std::numbers::sqrt2));
    }
}

void softcap(float* x, float cap, std::size_t n) {
    const double c = static_cast<double>(cap);
    for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(c * std::tanh(static_cast<double>(x[i]) / c));
}

void add(const float* x, float* y, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) y[i] += x[i];
}

void mul(const float* x, float* y, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) y[i] *= x[i];
}

void scale(float* x, float factor, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace hetero::kernels::ref
