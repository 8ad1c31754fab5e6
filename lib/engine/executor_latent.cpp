// Multi-head latent attention, computed where the cache is compressed: queries are brought to the latents' space
// instead of latents to the heads' (https://arxiv.org/abs/2405.04434, section 2.1).
#include <algorithm>

#include "engine/executor.h"
#include "engine/executor_parts.h"
#include "kernels/api/ops.h"

namespace hetero::engine {

using kv::PartId;

void Executor::multiply_heads(const model::Matrix& weight, std::size_t n_heads, const float* x, std::size_t x_stride,
                              std::size_t x_head, float* y, std::size_t y_stride, std::size_t y_head,
                              std::size_t n_tokens) {
    const std::size_t rows = weight.rows / n_heads;
    const Range heads = share_.heads(n_heads);
    const std::size_t block = std::min(rows, rows_per_task(rows * heads.size())), blocks = (rows + block - 1) / block;
    pool_.parallel_for(heads.size() * blocks, [&](std::size_t task, int) {
        const std::size_t head = heads.begin + task / blocks, begin = task % blocks * block;
        // Row r of the matrix is written to y[r]: the head's first row, head * rows, must come to head * y_head.
        const Product product{&weight, x + head * x_head, x_stride, y + head * (y_head - rows), y_stride};
        multiply(product, head * rows + begin, head * rows + std::min(begin + block, rows), n_tokens);
    });
}

Status Executor::op(const model::LatentKv& kv, const Chunk& chunk) {
    const model::KvLayout& layout = program_.kv[kv.layer];
    const kernels::RopeTable table = rope_table(kv.rope);
    const kernels::RopePairing pairing = program_.ropes[kv.rope].pairing;
    const std::size_t stride = width(kv.in);
    float* in = at(kv.in);
    FirstError errors;
    pool_.parallel_for(chunk.n_tokens, [&](std::size_t token, int) {
        float* latent = in + token * stride;
        float* key = latent + layout.head_dim_k;
        normalize(kv.norm, latent, latent, layout.head_dim_k);
        kernels::ops().rope(key, key, 1, layout.head_dim_v, table, token, pairing);
        auto stored = caches_[token]->store(kv.layer, PartId::k, positions_[token], latent);
        if (stored) stored = caches_[token]->store(kv.layer, PartId::v, positions_[token], key);
        if (!stored) errors.note(token, std::move(stored).error());
    });
    return errors.status();
}

Status Executor::op(const model::LatentQuery& query, const Chunk& chunk) {
    const model::KvLayout& layout = program_.kv[query.layer];
    const std::size_t n_tokens = chunk.n_tokens, plain = query.k_absorb.cols;
    const std::size_t in_head = plain + layout.head_dim_v, out_head = layout.query_dim();
    const float* in = at(query.in);
    float* out = at(query.out);
    multiply_heads(query.k_absorb, query.n_heads, in, width(query.in), in_head, out, width(query.out), out_head,
                   n_tokens);
    const kernels::RopeTable table = rope_table(query.rope);
    const kernels::RopePairing pairing = program_.ropes[query.rope].pairing;
    const Range heads = share_.heads(query.n_heads);
    pool_.parallel_for(n_tokens, [&](std::size_t token, int) {
        for (std::size_t head = heads.begin; head < heads.end; ++head) {
            kernels::ops().rope(in + token * width(query.in) + head * in_head + plain,
                                out + token * width(query.out) + head * out_head + layout.head_dim_k, 1,
                                layout.head_dim_v, table, token, pairing);
        }
    });
    return {};
}

Status Executor::op(const model::HeadProject& project, const Chunk& chunk) {
    const std::size_t dim = project.weight.rows / project.n_heads, n_tokens = chunk.n_tokens;
    multiply_heads(project.weight, project.n_heads, at(project.in), width(project.in), project.weight.cols,
                   at(project.out), width(project.out), dim, n_tokens);
    return gather_heads(at(project.out), project.n_heads, dim, width(project.out), n_tokens);
}

}  // namespace hetero::engine
