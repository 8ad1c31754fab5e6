// What the ops of an executor share. Of executor*.cpp only.
#pragma once
#include "engine/first_error.h"
#include "engine/linear.h"
#include "kernels/api/ops.h"
#include "model/program.h"

namespace hetero::engine {

inline constexpr std::size_t gather_floats = 1U << 20;  // that ranks gather at once, unless a single token has more

inline constexpr std::size_t huge_page_tokens = 64;  // of a chunk, from which on it lies in huge pages

inline constexpr std::size_t ffn_block_rows = 96;  // of gate and up, computed by one task for a whole chunk

// Whether gate, up and activation are one product in tiles.
inline bool is_fused(const model::FfnAdd& ffn) {
    const auto plain = [](const model::Matrix& matrix) { return matrix.row_scale.empty() && matrix.bias.empty(); };
    return ffn.gate.rows != 0 && ffn.activation == model::Activation::silu && plain(ffn.gate) && plain(ffn.up);
}

// Whether the activations of an FFN leave a task as its last product reads them, of a few rows at a time.
inline bool is_packed(const model::FfnAdd& ffn) {
    return (ffn.gate.rows == 0 || is_packed(ffn.gate)) && is_packed(ffn.up) && is_packed(ffn.down);
}

inline constexpr std::size_t max_spans = 32;                    // of one token's keys in decode
inline constexpr std::size_t max_spans_at_once = 128;           // of all tokens that are attended together
inline constexpr std::uint32_t query_block_tokens = 32;         // of one attention task in prefill
inline constexpr std::uint32_t large_query_block_tokens = 256;  // the same where each converts the keys for itself

inline void normalize(const model::Norm& norm, const float* in, float* out, std::size_t n) {
    const float* weight = norm.weight.values.data();
    if (norm.kind == model::Norm::Kind::rms) {
        kernels::ops().rms_norm(in, weight, out, n, norm.eps);
    } else {
        kernels::ops().layer_norm(in, weight, norm.bias.values.data(), out, n, norm.eps);
    }
}

inline void normalize_heads(const model::Norm& norm, float* heads, std::size_t n_heads, std::size_t head_dim) {
    for (std::size_t head = 0; head < n_heads; ++head, heads += head_dim) normalize(norm, heads, heads, head_dim);
}

// values = activation(values) * up; without `up` the activation alone.
inline void activate(model::Activation activation, float* values, const float* up, std::size_t n) {
    const kernels::Ops& ops = kernels::ops();
    if (activation == model::Activation::silu) return ops.silu_mul(values, up, values, n);
    if (activation == model::Activation::gelu_tanh) {
        ops.gelu_tanh(values, values, n);
    } else {
        ops.gelu_erf(values, values, n);
    }
    if (up != nullptr) ops.mul(up, values, n);
}

}  // namespace hetero::engine
