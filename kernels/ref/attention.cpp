#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ref/half.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {
namespace {

double element(const KvView& view, std::size_t token, std::size_t dim) {
    const std::size_t i = token % kKvPageTokens * view.token_stride + dim;
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(view.pages[token / kKvPageTokens] + view.offset);
    switch (view.dtype) {
        case DType::f16:
            return static_cast<double>(f16_to_f32(load<std::uint16_t>(bytes + 2 * i)));
        case DType::bf16:
            return static_cast<double>(bf16_to_f32(load<std::uint16_t>(bytes + 2 * i)));
        default:
            return static_cast<double>(load<float>(bytes + 4 * i));
    }
}

double score(const AttentionArgs& a, const float* q, std::size_t key) {
    double s = 0;
    for (std::size_t d = 0; d < a.head_dim_k; ++d) s += static_cast<double>(q[d]) * element(a.k, key, d);
    s *= static_cast<double>(a.scale);
    const double cap = static_cast<double>(a.softcap);
    return cap > 0 ? cap * std::tanh(s / cap) : s;
}

}  // namespace

namespace {

void attend_head(const AttentionArgs& a) {
    constexpr std::size_t kDims = 256;  // of V, summed at a time
    for (std::size_t i = 0; i < a.n_queries; ++i) {
        const float* q = a.q + i * a.q_stride;
        float* out = a.out + i * a.out_stride;
        const std::size_t end = std::min(a.first_position + i + 1, a.kv_tokens);
        const std::size_t begin =
            a.window && a.first_position + i + 1 > a.window ? a.first_position + i + 1 - a.window : 0;
        double max = -std::numeric_limits<double>::infinity();
        for (std::size_t key = begin; key < end; ++key) max = std::max(max, score(a, q, key));
        for (std::size_t d0 = 0; d0 < a.head_dim_v; d0 += kDims) {
            const std::size_t dims = std::min(kDims, a.head_dim_v - d0);
            double sum = 0, acc[kDims] = {};
            for (std::size_t key = begin; key < end; ++key) {
                const double p = std::exp(score(a, q, key) - max);
                sum += p;
                for (std::size_t d = 0; d < dims; ++d) acc[d] += p * element(a.v, key, d0 + d);
            }
            // No key in sight: zero.
            for (std::size_t d = 0; d < dims; ++d) out[d0 + d] = begin < end ? static_cast<float>(acc[d] / sum) : 0.0F;
        }
    }
}

}  // namespace

void attention(const AttentionArgs& a) {
    AttentionArgs one = a;
    one.n_heads = 1;
    for (std::size_t head = 0; head < a.n_heads; ++head) {
        attend_head(one);
        one.q += a.q_head_stride;
        one.out += a.out_head_stride;
    }
}

}  // namespace hetero::kernels::ref
