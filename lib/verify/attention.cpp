#include "verify/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/api/ops.h"
#include "kv/convert.h"

namespace hetero::verify {
namespace {

// K and V as attention reads them: of a latent layer both are the rows [latent | RoPE key].
struct Decoded {
    std::vector<float> k, v;  // [token][kv_head][dim]
    std::uint64_t n_tokens = 0;
    std::size_t k_stride = 0, v_stride = 0;          // elements from one token to the next
    std::vector<const std::byte*> k_pages, v_pages;  // of the values above
};

std::vector<const std::byte*> pages_of(const std::vector<float>& values, std::size_t stride) {
    std::vector<const std::byte*> pages;
    for (std::size_t at = 0; at < values.size(); at += kernels::kKvPageTokens * stride) {
        pages.push_back(reinterpret_cast<const std::byte*>(values.data() + at));
    }
    return pages;
}

Result<Decoded> decode(const Stored& stored, std::uint32_t layer, const model::KvLayout& layout) {
    const kv::Header& header = stored.state->header;
    const kv::Layer& parts = stored.state->layers[stored.sequence][layer];
    Decoded out;
    out.n_tokens = header.stored_tokens(stored.sequence, layer);
    const std::uint64_t first = header.first_token(stored.sequence, layer);
    HETERO_TRY(out.k, kv::decode_part(header, parts.k, out.n_tokens, kv::PartId::k, first));
    HETERO_TRY(out.v, kv::decode_part(header, parts.v, out.n_tokens, kv::PartId::v, first));
    out.k_stride = std::size_t{layout.n_kv_heads} * layout.head_dim_k;
    out.v_stride = std::size_t{layout.n_kv_heads} * layout.head_dim_v;
    if (layout.kind == model::KvLayout::Kind::latent) {
        std::vector<float> rows(out.n_tokens * layout.query_dim());
        for (std::uint64_t token = 0; token < out.n_tokens; ++token) {
            float* row = rows.data() + token * layout.query_dim();
            std::copy_n(out.k.data() + token * out.k_stride, out.k_stride, row);
            std::copy_n(out.v.data() + token * out.v_stride, out.v_stride, row + out.k_stride);
        }
        out.k = rows;
        out.v = std::move(rows);
        out.k_stride = out.v_stride = layout.query_dim();
    }
    out.k_pages = pages_of(out.k, out.k_stride);
    out.v_pages = pages_of(out.v, out.v_stride);
    return out;
}

// out[head][output_dim] of one query at `position`.
void attend(const engine::Queries& queries, std::size_t query, const model::KvLayout& layout, const Decoded& stored,
            std::uint64_t end_of_state, std::uint32_t kv_head, float* out) {
    const std::size_t group = queries.attention.n_heads / layout.n_kv_heads;
    const std::uint64_t position = queries.first + query,
                        newer = position - end_of_state + 1;  // its own token included
    const std::uint64_t window = queries.attention.window;
    if (window != 0 && window <= newer) return;  // sees no stored token: zeros
    kernels::AttentionArgs args;
    args.q = queries.values + query * queries.stride + kv_head * group * layout.query_dim();
    args.q_stride = queries.stride;
    args.k = {kernels::DType::f32, stored.k_pages.data(), kv_head * layout.query_dim() * sizeof(float),
              stored.k_stride};
    args.v = {kernels::DType::f32, stored.v_pages.data(), kv_head * layout.output_dim() * sizeof(float),
              stored.v_stride};
    args.out = out + kv_head * group * layout.output_dim();
    args.n_heads = group;
    args.out_stride = group * layout.output_dim();
    args.n_queries = 1;
    args.kv_tokens = stored.n_tokens;
    args.first_position = stored.n_tokens - 1;
    args.window = window == 0 ? 0 : window - newer;
    args.head_dim_k = layout.query_dim();
    args.head_dim_v = layout.output_dim();
    args.scale = queries.attention.scale;
    args.softcap = queries.attention.softcap;
    args.q_head_stride = layout.query_dim();
    args.out_head_stride = layout.output_dim();
    kernels::ops().attention(args);
}

void add(std::span<const float> reference, std::span<const float> candidate, std::size_t dim, std::uint64_t position,
         AttentionSums& sums) {
    double error = 0, norm = 0;
    for (std::size_t head = 0; head < sums.error.size(); ++head) {
        double head_error = 0, head_norm = 0;
        for (std::size_t i = head * dim; i < (head + 1) * dim; ++i) {
            const double x = reference[i], d = candidate[i] - x;
            head_error += d * d;
            head_norm += x * x;
        }
        sums.error[head] += head_error;
        sums.norm[head] += head_norm;
        error += head_error;
        norm += head_norm;
    }
    const double relative = error == 0 ? 0 : std::sqrt(error / norm);
    if (!(relative <= sums.max_relative)) {
        sums.max_relative = relative;
        sums.worst_position = position;
    }
}

}  // namespace

Status add_attention(const engine::Queries& queries, std::size_t from, std::size_t step, const model::KvLayout& layout,
                     const Stored& reference, std::span<const Stored> candidates, ThreadPool& pool,
                     std::span<AttentionSums> sums) {
    if (from >= queries.n_tokens) return {};
    const std::uint32_t layer = queries.attention.layer;
    const std::uint64_t end = reference.state->header.sequences[reference.sequence].tokens.size();
    const std::size_t n_queries = (queries.n_tokens - from + step - 1) / step;
    const std::size_t dim = layout.output_dim(), row = queries.attention.n_heads * dim;
    const auto outputs = [&](const Stored& stored) -> Result<std::vector<float>> {  // [query][head][dim]
        HETERO_TRY(const Decoded decoded, decode(stored, layer, layout));
        std::vector<float> out(n_queries * row);
        pool.parallel_for(n_queries * layout.n_kv_heads, [&](std::size_t task, int) {
            const std::size_t query = task / layout.n_kv_heads;
            attend(queries, from + query * step, layout, decoded, end,
                   static_cast<std::uint32_t>(task % layout.n_kv_heads), out.data() + query * row);
        });
        return out;
    };
    HETERO_TRY(const std::vector<float> expected, outputs(reference));
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        HETERO_TRY(const std::vector<float> got, outputs(candidates[i]));
        sums[i].error.resize(queries.attention.n_heads);
        sums[i].norm.resize(queries.attention.n_heads);
        for (std::size_t query = 0; query < n_queries; ++query) {
            add(std::span(expected).subspan(query * row, row), std::span(got).subspan(query * row, row), dim,
                queries.first + from + query * step, sums[i]);
        }
    }
    return {};
}

}  // namespace hetero::verify
