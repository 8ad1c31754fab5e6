#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/fp8.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {
namespace {

double f16_at(const std::byte* page, std::size_t offset, std::size_t index) {
    return static_cast<double>(f16_to_f32(load<std::uint16_t>(page + offset + 2 * index)));
}

double code_value(KvCodes codes, const std::byte* row, std::size_t dim) {
    const bool half = is_paired(codes);
    auto code = std::to_integer<unsigned>(row[half ? dim / 2 : dim]);
    if (half) code = dim % 2 == 0 ? code & 15 : code >> 4;
    switch (codes) {
        case KvCodes::i8:
            return static_cast<std::int8_t>(code);
        case KvCodes::i4:
            return static_cast<int>(code ^ 8) - 8;
        case KvCodes::e4m3fn:
            return static_cast<double>(e4m3fn_to_f32(static_cast<std::uint8_t>(code)));
        default:
            return code;
    }
}

// Codes in double, not rounded to f32 between product and sum.
double element(const KvView& view, std::size_t token, std::size_t dim, std::size_t head_dim) {
    if (view.open != nullptr && token >= view.open_begin) {
        return static_cast<double>(f16_to_f32(view.open[(token - view.open_begin) * head_dim + dim]));
    }
    const std::byte* page = view.pages[token / kKvPageTokens];
    const std::size_t row = token % kKvPageTokens, i = row * view.token_stride + dim;
    if (view.codes != KvCodes::floats) {
        const std::size_t at =
            view.group != 0 ? dim / view.group * kKvPageTokens + row : row / view.group_tokens * head_dim + dim;
        const std::byte* codes = page + view.offset + row * view.token_stride / (is_paired(view.codes) ? 2 : 1);
        const double zero = view.zero_offset == 0 ? 0 : f16_at(page, view.zero_offset, at);
        return code_value(view.codes, codes, dim) * f16_at(page, view.scale_offset, at) + zero;
    }
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(page + view.offset);
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
    for (std::size_t d = 0; d < a.head_dim_k; ++d) s += static_cast<double>(q[d]) * element(a.k, key, d, a.head_dim_k);
    s *= static_cast<double>(a.scale);
    const double cap = static_cast<double>(a.softcap);
    return cap > 0 ? cap * std::tanh(s / cap) : s;
}

// n doubles that a thread keeps, so that a step takes no memory.
double* thread_sums(std::size_t n) {
    thread_local std::vector<double> sums;
    if (sums.size() < n) sums.resize(n);
    return sums.data();
}

struct Softmax {
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
};

// acc[d] = the sum of exp(score - max) * v[d] over keys [begin, end).
Softmax sum_values(const AttentionArgs& a, const float* q, std::size_t begin, std::size_t end, double* acc) {
    Softmax softmax;
    for (std::size_t key = begin; key < end; ++key) softmax.max = std::max(softmax.max, score(a, q, key));
    std::fill_n(acc, a.head_dim_v, 0.0);
    for (std::size_t key = begin; key < end; ++key) {
        const double p = std::exp(score(a, q, key) - softmax.max);
        softmax.sum += p;
        for (std::size_t d = 0; d < a.head_dim_v; ++d) acc[d] += p * element(a.v, key, d, a.head_dim_v);
    }
    return softmax;
}

void attend_head(const AttentionArgs& a) {
    double* const acc = thread_sums(a.head_dim_v);
    for (std::size_t i = 0; i < a.n_queries; ++i) {
        const std::size_t seen = a.first_position + i + 1, end = std::min(seen, a.kv_tokens);
        const std::size_t begin = a.window && seen > a.window ? seen - a.window : 0;
        const Softmax softmax = sum_values(a, a.q + i * a.q_stride, begin, end, acc);
        float* out = a.out + i * a.out_stride;  // no key in sight: zero
        for (std::size_t d = 0; d < a.head_dim_v; ++d)
            out[d] = begin < end ? static_cast<float>(acc[d] / softmax.sum) : 0.0F;
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

void attention_spans(const AttentionArgs& a, std::size_t key_begin, std::size_t key_end, std::size_t span, float* parts,
                     std::size_t parts_stride) {
    double* const acc = thread_sums(a.head_dim_v);
    for (std::size_t begin = key_begin; begin < key_end; parts += a.head_dim_v + 2) {
        const std::size_t end = std::min(key_end, (begin / span + 1) * span);
        for (std::size_t head = 0; head < a.n_heads; ++head) {
            const Softmax softmax = sum_values(a, a.q + head * a.q_head_stride, begin, end, acc);
            float* part = parts + head * parts_stride;
            part[0] = static_cast<float>(softmax.max);
            part[1] = static_cast<float>(softmax.sum);
            for (std::size_t d = 0; d < a.head_dim_v; ++d) part[2 + d] = static_cast<float>(acc[d]);
        }
        begin = end;
    }
}

void attention_merge(const float* parts, std::size_t n_spans, std::size_t head_dim, float* out) {
    const std::size_t stride = head_dim + 2;
    float max = parts[0];
    for (std::size_t span = 1; span < n_spans; ++span) max = std::max(max, parts[span * stride]);
    const auto weight = [&](std::size_t span) {
        return std::exp(static_cast<double>(parts[span * stride]) - static_cast<double>(max));
    };
    double sum = 0;
    for (std::size_t span = 0; span < n_spans; ++span)
        sum += weight(span) * static_cast<double>(parts[span * stride + 1]);
    for (std::size_t d = 0; d < head_dim; ++d) {
        double acc = 0;
        for (std::size_t span = 0; span < n_spans; ++span)
            acc += weight(span) * static_cast<double>(parts[span * stride + 2 + d]);
        out[d] = static_cast<float>(acc / sum);
    }
}

}  // namespace hetero::kernels::ref
