#include "engine/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/executor_parts.h"
#include "kernels/api/ops.h"

namespace hetero::engine {
namespace {

using kv::PartId;

constexpr std::size_t head_block_tokens = 32;    // logits computed together: bounds the [tokens][vocab] buffer
constexpr std::size_t query_block_tokens = 32;   // of one attention task
constexpr std::size_t row_granule = 16;          // rows of a task are a multiple: whole vectors in element-wise ops
constexpr std::size_t tasks_per_thread = 4;      // so that a delayed thread does not hold up the others for long
constexpr std::size_t gather_floats = 1U << 20;  // that ranks gather at once, unless a single token has more

std::size_t round_up(std::size_t n, std::size_t granule) { return (n + granule - 1) / granule * granule; }

}  // namespace

Executor::Sizes Executor::sizes_of(const model::Program& program) {
    Sizes sizes;
    const auto widen = [](std::size_t& size, std::size_t to) { size = std::max(size, to); };
    const auto multiplied = [&](const model::Matrix& matrix, std::size_t rows_per_token = 1) {
        widen(sizes.quantized, kernels::activation_bytes(rows_per_token, matrix.cols));
    };
    const auto finely = [&](const model::Matrix& matrix) {
        multiplied(matrix, 2);
        widen(sizes.residual, matrix.cols);
    };
    for (const model::Op& any : program.ops) {
        if (const auto* qkv = std::get_if<model::Qkv>(&any)) {
            widen(sizes.k, qkv->k.rows);
            widen(sizes.v, qkv->v.rows);
            finely(qkv->q);
        } else if (const auto* plain = std::get_if<model::Project>(&any)) {
            multiplied(plain->weight);
        } else if (const auto* project = std::get_if<model::ProjectAdd>(&any)) {
            widen(sizes.product, project->weight.rows);
            multiplied(project->weight);
        } else if (const auto* ffn = std::get_if<model::FfnAdd>(&any)) {
            widen(sizes.ffn, ffn->up.rows);
            widen(sizes.product, ffn->down.rows);
            multiplied(ffn->up);
            multiplied(ffn->down);
        } else if (const auto* moe = std::get_if<model::MoeAdd>(&any)) {
            multiplied(moe->router);
            multiplied(moe->experts.front().up, moe->rule.top_k);
            multiplied(moe->experts.front().down, moe->rule.top_k);
        } else if (const auto* head = std::get_if<model::Head>(&any)) {
            widen(sizes.vocab, head->weight.rows);
            widen(sizes.hidden, head->weight.cols);
            finely(head->weight);
        }
    }
    return sizes;
}

std::uint64_t Executor::bytes_needed(const model::Program& program, std::uint32_t chunk_tokens,
                                     const Communicator& group, Precision precision) {
    const Sizes sizes = sizes_of(program);
    std::uint64_t per_token = sizes.k + sizes.v + 2 * sizes.ffn + sizes.product;
    for (const model::RegisterInfo& info : program.registers) per_token += info.width;
    for (const model::RopeConfig& rope : program.ropes) per_token += rope.rotary_dim;
    const std::uint64_t head = std::min<std::uint64_t>(chunk_tokens, head_block_tokens) * (sizes.vocab + sizes.hidden);
    const std::uint64_t gathered = group.size() == 1 ? 0 : 2 * std::max(gather_floats, sizes.vocab);  // sent, and all
    const std::uint64_t quantized =
        precision == Precision::fast ? (sizes.quantized + sizes.residual * sizeof(float)) * chunk_tokens : 0;
    return (per_token * chunk_tokens + head + gathered) * sizeof(float) + Slots::bytes_needed(program, chunk_tokens) +
           quantized;
}

Executor::Executor(const model::Program& program, ThreadPool& pool, std::uint32_t chunk_tokens, Communicator& group,
                   std::shared_ptr<const PackedWeights> packed)
    : program_(program),
      pool_(pool),
      group_(group),
      share_(group),
      sizes_(sizes_of(program)),
      chunk_tokens_(chunk_tokens),
      slots_(program, chunk_tokens),
      packed_(std::move(packed)),
      quantized_(packed_ != nullptr ? sizes_.quantized * chunk_tokens : 0),
      residual_(packed_ != nullptr ? sizes_.residual * chunk_tokens : 0),
      parts_(static_cast<std::size_t>(group.size())),
      part_bytes_(parts_.size()),
      packed_rows_(group.size() == 1 ? 0 : gather_floats) {
    const std::size_t tokens = chunk_tokens;
    for (const model::RegisterInfo& info : program.registers) registers_.emplace_back(tokens * info.width);
    for (const model::RopeConfig& rope : program.ropes) {
        const std::size_t pairs = rope.rotary_dim / 2;
        ropes_.push_back({model::inverse_frequencies(rope), rope.attention_factor, std::vector<float>(tokens * pairs),
                          std::vector<float>(tokens * pairs)});
    }
    k_.resize(tokens * sizes_.k);
    v_.resize(tokens * sizes_.v);
    gate_.resize(tokens * sizes_.ffn);
    up_.resize(tokens * sizes_.ffn);
    product_.resize(tokens * sizes_.product);
    const std::size_t head_tokens = std::min<std::size_t>(tokens, head_block_tokens);
    head_normed_.resize(head_tokens * sizes_.hidden);
    logits_.resize(head_tokens * sizes_.vocab);
}

Status Executor::run(std::span<const std::int32_t> tokens, std::uint64_t first, KvCache& cache, Rows rows,
                     const LogitsFn& on_logits) {
    if (tokens.empty() || tokens.size() > chunk_tokens_ || first + tokens.size() > cache.capacity()) {
        return fail(Errc::internal, "executor: a chunk of {} tokens at {} (chunk {}, capacity {})", tokens.size(),
                    first, chunk_tokens_, cache.capacity());
    }
    fill_rope(first, tokens.size());
    const Chunk chunk{tokens, first, &cache, rows, &on_logits};
    for (const model::Op& any : program_.ops) {
        HETERO_CHECK(std::visit([&](const auto& one) { return op(one, chunk); }, any));
    }
    return {};
}

// Angles in double: at position 100,000 a float product is off by up to 0.004 rad.
void Executor::fill_rope(std::uint64_t first, std::size_t n_tokens) {
    for (RopeTable& table : ropes_) {
        const std::size_t pairs = table.frequencies.size();
        pool_.parallel_for(n_tokens, [&](std::size_t token, int) {
            for (std::size_t pair = 0; pair < pairs; ++pair) {
                const double angle = static_cast<double>(first + token) * table.frequencies[pair];
                table.cos[token * pairs + pair] = static_cast<float>(std::cos(angle) * table.factor);
                table.sin[token * pairs + pair] = static_cast<float>(std::sin(angle) * table.factor);
            }
        });
    }
}

std::size_t Executor::rows_per_task(std::size_t rows) const {
    const auto threads = static_cast<std::size_t>(pool_.size());
    if (threads == 1) return std::max<std::size_t>(rows, 1);
    return std::max(row_granule, round_up(rows / (threads * tasks_per_thread), row_granule));
}

void Executor::quantize(const float* x, std::size_t x_stride, std::size_t cols, std::size_t n_tokens, std::uint8_t* out,
                        float* residual) {
    constexpr std::size_t tile = kernels::activation_tile;
    pool_.parallel_for((n_tokens + tile - 1) / tile, [&](std::size_t index, int) {
        const std::size_t first = index * tile;
        kernels::ops().quantize_activations(x + first * x_stride, x_stride, std::min(tile, n_tokens - first), cols,
                                            out + kernels::activation_bytes(first, cols),
                                            residual != nullptr ? residual + first * cols : nullptr);
    });
}

void Executor::prepare(std::span<Product> products, std::size_t n_tokens, bool fine) {
    if (packed_ == nullptr) return;
    const Product& first = products.front();
    const std::size_t cols = first.weight->cols;
    std::uint8_t* residual = quantized_.data() + kernels::activation_bytes(n_tokens, cols);
    bool any = false;
    for (Product& product : products) {
        product.packed = packed_->find(*product.weight);
        product.quantized = quantized_.data();
        product.residual = fine ? residual : nullptr;
        any = any || product.packed != nullptr;
    }
    if (!any) return;
    quantize(first.x, first.x_stride, cols, n_tokens, quantized_.data(), fine ? residual_.data() : nullptr);
    if (fine) quantize(residual_.data(), cols, cols, n_tokens, residual);
}

void Executor::multiply(const Product& product, std::size_t begin, std::size_t end, std::size_t n_tokens) const {
    const model::Matrix& w = *product.weight;
    if (product.packed != nullptr) {
        const auto& [packing, data, first_row] = *product.packed;
        float* y = product.y + first_row;
        kernels::ops().packed_gemm(packing, data, begin - first_row, end - first_row, w.cols, product.quantized,
                                   n_tokens, false, y, product.y_stride);
        if (product.residual != nullptr) {
            kernels::ops().packed_gemm(packing, data, begin - first_row, end - first_row, w.cols, product.residual,
                                       n_tokens, true, y, product.y_stride);
        }
    }
    const std::size_t group_rows = w.group_rows == 0 ? w.rows : w.group_rows;
    for (std::size_t row = product.packed != nullptr ? end : begin; row < end;) {
        const std::size_t group = row / group_rows, group_end = std::min((group + 1) * group_rows, end);
        // As if the rows before this group were adjacent to it: row r lies at data + r * row_bytes.
        const std::byte* data = w.data + group * (w.group_rows == 0 ? 0 : w.group_bytes - group_rows * w.row_bytes);
        if (n_tokens == 1) {
            kernels::ops().gemv(w.dtype, data, w.row_bytes, row, group_end, w.cols, product.x, product.y);
        } else {
            kernels::ops().gemm(w.dtype, data, w.row_bytes, row, group_end, w.cols, product.x, product.x_stride,
                                n_tokens, product.y, product.y_stride);
        }
        row = group_end;
    }
    for (std::size_t token = 0; token < n_tokens; ++token) {
        float* y = product.y + token * product.y_stride + begin;
        if (!w.row_scale.empty()) kernels::ops().mul(w.row_scale.data() + begin, y, end - begin);
        if (!w.bias.empty()) kernels::ops().add(w.bias.data() + begin, y, end - begin);
    }
}

void Executor::multiply_all(std::span<Product> products, std::size_t n_tokens, bool fine) {
    prepare(products, n_tokens, fine);
    std::size_t total_rows = 0, tasks = 0;
    for (const Product& product : products) total_rows += product.rows.size();
    const std::size_t block = rows_per_task(total_rows);
    const auto tasks_of = [block](const Product& product) { return (product.rows.size() + block - 1) / block; };
    for (const Product& product : products) tasks += tasks_of(product);
    pool_.parallel_for(tasks, [&](std::size_t task, int) {
        const Product* product = products.data();
        while (task >= tasks_of(*product)) task -= tasks_of(*product++);
        const std::size_t begin = product->rows.begin + task * block;
        multiply(*product, begin, std::min(begin + block, product->rows.end), n_tokens);
    });
}

Status Executor::gather_rows(float* y, std::size_t rows, std::size_t stride, std::size_t n_tokens) {
    for (std::size_t rank = 0; rank < parts_.size(); ++rank) parts_[rank] = share_.of(rank).rows(rows);
    return gather(y, stride, n_tokens);
}

Status Executor::gather_heads(float* y, std::size_t n_heads, std::size_t dim, std::size_t stride,
                              std::size_t n_tokens) {
    for (std::size_t rank = 0; rank < parts_.size(); ++rank) parts_[rank] = share_.of(rank).heads(n_heads).times(dim);
    return gather(y, stride, n_tokens);
}

Status Executor::gather(float* y, std::size_t stride, std::size_t n_tokens) {
    if (parts_.size() == 1) return {};
    const Range own = parts_[share_.rank()];
    const std::size_t block = std::clamp<std::size_t>(gather_floats / parts_.back().end, 1, n_tokens);
    for (std::size_t first = 0; first < n_tokens; first += block, y += block * stride) {
        const std::size_t count = std::min(block, n_tokens - first);
        for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
            part_bytes_[rank] = count * parts_[rank].size() * sizeof(float);
        }
        const float* mine = y + own.begin;
        if (count > 1) {
            mine = packed_rows_.data();
            for (std::size_t token = 0; token < count; ++token) {
                std::memcpy(packed_rows_.data() + token * own.size(), y + token * stride + own.begin,
                            own.size() * sizeof(float));
            }
        }
        HETERO_TRY(const std::span<const std::byte> all,
                   group_.all_gather(std::as_bytes(std::span(mine, count * own.size())), part_bytes_));
        const std::byte* from = all.data();
        for (const Range& part : parts_) {
            const std::size_t bytes = part.size() * sizeof(float);
            for (std::size_t token = 0; token < count && bytes > 0; ++token, from += bytes) {
                std::memcpy(y + token * stride + part.begin, from, bytes);
            }
        }
    }
    return {};
}

Status Executor::multiply_add(const model::Matrix& weight, const std::optional<model::Norm>& norm, const float* x,
                              std::size_t x_stride, float* y, std::size_t y_stride, std::size_t n_tokens) {
    const std::size_t rows = weight.rows;
    const Range own = share_.rows(rows);
    Product product{&weight, x, x_stride, product_.data(), rows, own};
    if (norm) {  // needs whole rows of the product
        multiply_all({&product, 1}, n_tokens);
        HETERO_CHECK(gather_rows(product_.data(), rows, rows, n_tokens));
        pool_.parallel_for(n_tokens, [&](std::size_t token, int) {
            float* values = product_.data() + token * rows;
            normalize(*norm, values, values, rows);
            kernels::ops().add(values, y + token * y_stride, rows);
        });
        return {};
    }
    prepare({&product, 1}, n_tokens);
    const std::size_t block = rows_per_task(own.size());
    pool_.parallel_for((own.size() + block - 1) / block, [&](std::size_t task, int) {
        const std::size_t begin = own.begin + task * block, end = std::min(begin + block, own.end);
        multiply(product, begin, end, n_tokens);
        for (std::size_t token = 0; token < n_tokens; ++token) {
            kernels::ops().add(product.y + token * rows + begin, y + token * y_stride + begin, end - begin);
        }
    });
    return gather_rows(y, rows, y_stride, n_tokens);
}

Status Executor::op(const model::Embed& embed, const Chunk& chunk) {
    const model::Matrix& table = embed.table;
    float* out = at(embed.out);
    pool_.parallel_for(chunk.tokens.size(), [&](std::size_t token, int) {
        const auto id = static_cast<std::size_t>(chunk.tokens[token]);
        float* row = out + token * table.cols;
        kernels::ops().dequantize(table.dtype, table.data + id * table.row_bytes, row, table.cols);
        if (!table.row_scale.empty()) kernels::ops().scale(row, table.row_scale[id], table.cols);
        if (embed.scale != 1) kernels::ops().scale(row, embed.scale, table.cols);
    });
    return {};
}

Status Executor::op(const model::Normalize& one, const Chunk& chunk) {
    const std::size_t n = width(one.in);
    const float* in = at(one.in);
    float* out = at(one.out);
    pool_.parallel_for(chunk.tokens.size(),
                       [&](std::size_t token, int) { normalize(one.norm, in + token * n, out + token * n, n); });
    return {};
}

Status Executor::op(const model::Qkv& qkv, const Chunk& chunk) {
    const std::size_t n_tokens = chunk.tokens.size(), in_width = width(qkv.in), q_width = width(qkv.q_out);
    const std::size_t k_width = qkv.k.rows, v_width = qkv.v.rows;
    const model::KvLayout& layout = program_.kv[qkv.layer];
    const std::size_t dim_k = layout.head_dim_k, dim_v = layout.head_dim_v;
    const Range heads = share_.heads(qkv.n_heads), kv_heads = share_.kv_heads(qkv.n_heads, layout.n_kv_heads);
    const float* in = at(qkv.in);
    float* q = at(qkv.q_out);
    Product products[] = {{&qkv.q, in, in_width, q, q_width, heads.times(dim_k)},
                          {&qkv.k, in, in_width, k_.data(), k_width, kv_heads.times(dim_k)},
                          {&qkv.v, in, in_width, v_.data(), v_width, kv_heads.times(dim_v)}};
    // Their errors grow most: they pass through a softmax, and stay in the cache.
    multiply_all(products, n_tokens, true);

    const RopeTable& rope = ropes_[qkv.rope];
    const kernels::RopeTable table{rope.cos.data(), rope.sin.data(), rope.frequencies.size()};
    const kernels::RopePairing pairing = program_.ropes[qkv.rope].pairing;
    FirstError errors;
    pool_.parallel_for(n_tokens, [&](std::size_t token, int) {
        const kernels::Ops& ops = kernels::ops();
        float* q_row = q + token * q_width + heads.begin * dim_k;
        float* k_row = k_.data() + token * k_width + kv_heads.begin * dim_k;
        const float* v_row = v_.data() + token * v_width + kv_heads.begin * dim_v;
        if (qkv.q_norm) normalize_heads(*qkv.q_norm, q_row, heads.size(), dim_k);
        if (qkv.k_norm) normalize_heads(*qkv.k_norm, k_row, kv_heads.size(), dim_k);
        ops.rope(q_row, q_row, heads.size(), dim_k, table, token, pairing);
        ops.rope(k_row, k_row, kv_heads.size(), dim_k, table, token, pairing);
        auto stored = chunk.cache->store(qkv.layer, PartId::k, chunk.first + token, k_row);
        if (stored) stored = chunk.cache->store(qkv.layer, PartId::v, chunk.first + token, v_row);
        if (!stored) errors.note(token, std::move(stored).error());
    });
    return errors.status();
}

Status Executor::op(const model::Attention& attention, const Chunk& chunk) {
    const std::size_t n_tokens = chunk.tokens.size(), blocks = (n_tokens + query_block_tokens - 1) / query_block_tokens;
    const model::KvLayout& layout = program_.kv[attention.layer];
    const std::size_t group = attention.n_heads / layout.n_kv_heads;
    const Range heads = share_.heads(attention.n_heads);
    const std::size_t first_kv_head = share_.kv_heads(attention.n_heads, layout.n_kv_heads).begin;  // of the cache
    const float* q = at(attention.q);
    float* out = at(attention.out);
    // Query heads of one KV head read it together, unless a rank has a part of them only, or there would be fewer tasks
    // than threads.
    const auto threads = static_cast<std::size_t>(pool_.size());
    const bool whole_groups = heads.begin % group == 0 && heads.end % group == 0;
    const bool enough = threads == 1 || blocks * heads.size() / group >= 2 * threads;
    const std::size_t together = whole_groups && enough ? group : 1, parts = heads.size() / together;
    // Late query blocks see the most keys: they are taken first.
    pool_.parallel_for(blocks * parts, [&](std::size_t task, int) {
        const std::size_t head = heads.begin + task % parts * together, block = blocks - 1 - task / parts;
        const std::size_t begin = block * query_block_tokens, end = std::min(begin + query_block_tokens, n_tokens);
        const auto kv_head = static_cast<std::uint32_t>(head / group - first_kv_head);
        kernels::AttentionArgs args;
        args.n_heads = together;
        args.q_head_stride = layout.query_dim();
        args.out_head_stride = layout.output_dim();
        args.q_stride = width(attention.q);
        args.q = q + begin * args.q_stride + head * layout.query_dim();
        args.k = chunk.cache->view(attention.layer, PartId::k, kv_head);
        args.v = chunk.cache->view(attention.layer, PartId::v, kv_head);
        args.out_stride = width(attention.out);
        args.out = out + begin * args.out_stride + head * layout.output_dim();
        args.n_queries = end - begin;
        args.kv_tokens = chunk.first + end;
        args.first_position = chunk.first + begin;
        args.head_dim_k = layout.query_dim();
        args.head_dim_v = layout.output_dim();
        args.scale = attention.scale;
        args.window = attention.window;
        args.softcap = attention.softcap;
        kernels::ops().attention(args);
    });
    if (layout.kind == model::KvLayout::Kind::latent) return {};  // HeadProject comes next, of the same heads
    return gather_heads(out, attention.n_heads, layout.output_dim(), width(attention.out), n_tokens);
}

Status Executor::op(const model::Project& project, const Chunk& chunk) {
    const std::size_t rows = project.weight.rows, n_tokens = chunk.tokens.size(), out_width = width(project.out);
    const Range own =
        project.n_heads == 0 ? share_.rows(rows) : share_.heads(project.n_heads).times(rows / project.n_heads);
    Product product{&project.weight, at(project.in), width(project.in), at(project.out), out_width, own};
    multiply_all({&product, 1}, n_tokens);
    return project.n_heads == 0 ? gather_rows(at(project.out), rows, out_width, n_tokens) : Status{};
}

Status Executor::op(const model::ProjectAdd& project, const Chunk& chunk) {
    return multiply_add(project.weight, project.norm, at(project.in), width(project.in), at(project.out),
                        width(project.out), chunk.tokens.size());
}

Status Executor::op(const model::FfnAdd& ffn, const Chunk& chunk) {
    const std::size_t n_tokens = chunk.tokens.size(), rows = ffn.up.rows;
    const Range own = share_.rows(rows);
    const std::size_t block = rows_per_task(own.size());
    const bool gated = ffn.gate.rows != 0;
    // What goes through the activation lies in gate_, gated or not.
    Product products[] = {{gated ? &ffn.gate : &ffn.up, at(ffn.in), width(ffn.in), gate_.data(), rows},
                          {&ffn.up, at(ffn.in), width(ffn.in), up_.data(), rows}};
    const Product &activated = products[0], &up = products[1];
    prepare(products, n_tokens);
    pool_.parallel_for((own.size() + block - 1) / block, [&](std::size_t task, int) {
        const std::size_t begin = own.begin + task * block, end = std::min(begin + block, own.end);
        multiply(activated, begin, end, n_tokens);
        if (gated) multiply(up, begin, end, n_tokens);
        for (std::size_t token = 0; token < n_tokens; ++token) {
            const std::size_t offset = token * rows + begin;
            activate(ffn.activation, gate_.data() + offset, gated ? up_.data() + offset : nullptr, end - begin);
        }
    });
    HETERO_CHECK(gather_rows(gate_.data(), rows, rows, n_tokens));
    return multiply_add(ffn.down, ffn.norm, gate_.data(), rows, at(ffn.out), width(ffn.out), n_tokens);
}

Status Executor::op(const model::Head& head, const Chunk& chunk) {
    if (chunk.rows == Rows::none) return {};
    const std::size_t n_tokens = chunk.tokens.size(), hidden = width(head.in), vocab = head.weight.rows;
    const std::size_t first = chunk.rows == Rows::last ? n_tokens - 1 : 0;
    const Range own = share_.rows(vocab);
    for (std::size_t begin = first; begin < n_tokens; begin += head_block_tokens) {
        const std::size_t count = std::min(head_block_tokens, n_tokens - begin);
        const float* in = at(head.in) + begin * hidden;
        pool_.parallel_for(count, [&](std::size_t token, int) {
            normalize(head.norm, in + token * hidden, head_normed_.data() + token * hidden, hidden);
        });
        Product product{&head.weight, head_normed_.data(), hidden, logits_.data(), vocab, own};
        multiply_all({&product, 1}, count, true);
        if (head.softcap > 0) {
            pool_.parallel_for(count, [&](std::size_t token, int) {
                kernels::ops().softcap(logits_.data() + token * vocab + own.begin, head.softcap, own.size());
            });
        }
        HETERO_CHECK(gather_rows(logits_.data(), vocab, vocab, count));
        for (std::size_t token = 0; token < count && *chunk.on_logits; ++token) {
            HETERO_CHECK((*chunk.on_logits)(begin + token, {logits_.data() + token * vocab, vocab}));
        }
    }
    return {};
}

}  // namespace hetero::engine
