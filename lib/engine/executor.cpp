#include "engine/executor.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>

#include "kernels/api/ops.h"

namespace hetero::engine {
namespace {

using kv::PartId;

constexpr std::size_t head_block_tokens = 32;   // logits computed together: bounds the [tokens][vocab] buffer
constexpr std::size_t query_block_tokens = 32;  // of one attention task
constexpr std::size_t row_granule = 16;         // rows of a task are a multiple: whole vectors in element-wise ops
constexpr std::size_t tasks_per_thread = 4;     // so that a delayed thread does not hold up the others for long

std::size_t round_up(std::size_t n, std::size_t granule) { return (n + granule - 1) / granule * granule; }

// The error of the first token, whichever thread met one first.
class FirstError {
public:
    void note(std::size_t token, Error error) {
        const std::lock_guard lock(mutex_);
        if (!error_ || token < token_) {
            token_ = token;
            error_ = std::move(error);
        }
    }
    [[nodiscard]] Status status() {
        if (error_) return tl::unexpected<Error>(std::move(*error_));
        return {};
    }

private:
    std::mutex mutex_;
    std::size_t token_ = 0;
    std::optional<Error> error_;
};

void normalize(const model::Norm& norm, const float* in, float* out, std::size_t n) {
    const float* weight = norm.weight.values.data();
    if (norm.kind == model::Norm::Kind::rms) {
        kernels::ops().rms_norm(in, weight, out, n, norm.eps);
    } else {
        kernels::ops().layer_norm(in, weight, norm.bias.values.data(), out, n, norm.eps);
    }
}

void normalize_heads(const model::Norm& norm, float* heads, std::size_t n_heads, std::size_t head_dim) {
    for (std::size_t head = 0; head < n_heads; ++head, heads += head_dim) normalize(norm, heads, heads, head_dim);
}

// values = activation(values) * up; without `up` the activation alone.
void activate(model::Activation activation, float* values, const float* up, std::size_t n) {
    const kernels::Ops& ops = kernels::ops();
    if (activation == model::Activation::silu) return ops.silu_mul(values, up, values, n);
    if (activation == model::Activation::gelu_tanh) {
        ops.gelu_tanh(values, values, n);
    } else {
        ops.gelu_erf(values, values, n);
    }
    if (up != nullptr) ops.mul(up, values, n);
}

}  // namespace

Executor::Sizes Executor::sizes_of(const model::Program& program) {
    Sizes sizes;
    const auto widen = [](std::size_t& size, std::size_t to) { size = std::max(size, to); };
    for (const model::Op& any : program.ops) {
        if (const auto* qkv = std::get_if<model::Qkv>(&any)) {
            widen(sizes.k, qkv->k.rows);
            widen(sizes.v, qkv->v.rows);
        } else if (const auto* project = std::get_if<model::ProjectAdd>(&any)) {
            widen(sizes.product, project->weight.rows);
        } else if (const auto* ffn = std::get_if<model::FfnAdd>(&any)) {
            widen(sizes.ffn, ffn->up.rows);
            widen(sizes.product, ffn->down.rows);
        } else if (const auto* head = std::get_if<model::Head>(&any)) {
            widen(sizes.vocab, head->weight.rows);
            widen(sizes.hidden, head->weight.cols);
        }
    }
    return sizes;
}

std::uint64_t Executor::bytes_needed(const model::Program& program, std::uint32_t chunk_tokens) {
    const Sizes sizes = sizes_of(program);
    std::uint64_t per_token = sizes.k + sizes.v + 2 * sizes.ffn + sizes.product;
    for (const model::RegisterInfo& info : program.registers) per_token += info.width;
    for (const model::RopeConfig& rope : program.ropes) per_token += rope.rotary_dim;
    const std::uint64_t head = std::min<std::uint64_t>(chunk_tokens, head_block_tokens) * (sizes.vocab + sizes.hidden);
    return (per_token * chunk_tokens + head) * sizeof(float);
}

Executor::Executor(const model::Program& program, ThreadPool& pool, std::uint32_t chunk_tokens)
    : program_(program), pool_(pool), sizes_(sizes_of(program)), chunk_tokens_(chunk_tokens) {
    const std::size_t tokens = chunk_tokens;
    for (const model::RegisterInfo& info : program.registers) registers_.emplace_back(tokens * info.width);
    for (const model::RopeConfig& rope : program.ropes) {
        const std::size_t pairs = rope.rotary_dim / 2;
        ropes_.push_back(
            {model::inverse_frequencies(rope), std::vector<float>(tokens * pairs), std::vector<float>(tokens * pairs)});
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
                table.cos[token * pairs + pair] = static_cast<float>(std::cos(angle));
                table.sin[token * pairs + pair] = static_cast<float>(std::sin(angle));
            }
        });
    }
}

std::size_t Executor::rows_per_task(std::size_t rows) const {
    const auto threads = static_cast<std::size_t>(pool_.size());
    if (threads == 1) return rows;
    return std::max(row_granule, round_up(rows / (threads * tasks_per_thread), row_granule));
}

void Executor::multiply(const Product& product, std::size_t begin, std::size_t end, std::size_t n_tokens) const {
    const model::Matrix& w = *product.weight;
    const std::size_t group_rows = w.group_rows == 0 ? w.rows : w.group_rows;
    for (std::size_t row = begin; row < end;) {
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

void Executor::multiply_all(std::span<const Product> products, std::size_t n_tokens) {
    std::size_t total_rows = 0, tasks = 0;
    for (const Product& product : products) total_rows += product.weight->rows;
    const std::size_t block = rows_per_task(total_rows);
    const auto tasks_of = [block](const Product& product) { return (product.weight->rows + block - 1) / block; };
    for (const Product& product : products) tasks += tasks_of(product);
    pool_.parallel_for(tasks, [&](std::size_t task, int) {
        const Product* product = products.data();
        while (task >= tasks_of(*product)) task -= tasks_of(*product++);
        multiply(*product, task * block, std::min<std::size_t>((task + 1) * block, product->weight->rows), n_tokens);
    });
}

void Executor::multiply_add(const model::Matrix& weight, const std::optional<model::Norm>& norm, const float* x,
                            std::size_t x_stride, float* y, std::size_t y_stride, std::size_t n_tokens) {
    const std::size_t rows = weight.rows, block = rows_per_task(rows);
    const Product product{&weight, x, x_stride, product_.data(), rows};
    if (norm) {  // needs whole rows of the product
        multiply_all({&product, 1}, n_tokens);
        pool_.parallel_for(n_tokens, [&](std::size_t token, int) {
            float* values = product_.data() + token * rows;
            normalize(*norm, values, values, rows);
            kernels::ops().add(values, y + token * y_stride, rows);
        });
        return;
    }
    pool_.parallel_for((rows + block - 1) / block, [&](std::size_t task, int) {
        const std::size_t begin = task * block, end = std::min(begin + block, rows);
        multiply(product, begin, end, n_tokens);
        for (std::size_t token = 0; token < n_tokens; ++token) {
            kernels::ops().add(product.y + token * rows + begin, y + token * y_stride + begin, end - begin);
        }
    });
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
    const float* in = at(qkv.in);
    float* q = at(qkv.q_out);
    const Product products[] = {{&qkv.q, in, in_width, q, q_width},
                                {&qkv.k, in, in_width, k_.data(), k_width},
                                {&qkv.v, in, in_width, v_.data(), v_width}};
    multiply_all(products, n_tokens);

    const RopeTable& rope = ropes_[qkv.rope];
    const kernels::RopeTable table{rope.cos.data(), rope.sin.data(), rope.frequencies.size()};
    const kernels::RopePairing pairing = program_.ropes[qkv.rope].pairing;
    const model::KvLayout& layout = program_.kv[qkv.layer];
    FirstError errors;
    pool_.parallel_for(n_tokens, [&](std::size_t token, int) {
        const kernels::Ops& ops = kernels::ops();
        float* q_row = q + token * q_width;
        float* k_row = k_.data() + token * k_width;
        if (qkv.q_norm) normalize_heads(*qkv.q_norm, q_row, qkv.n_heads, layout.head_dim_k);
        if (qkv.k_norm) normalize_heads(*qkv.k_norm, k_row, layout.n_kv_heads, layout.head_dim_k);
        ops.rope(q_row, q_row, qkv.n_heads, layout.head_dim_k, table, token, pairing);
        ops.rope(k_row, k_row, layout.n_kv_heads, layout.head_dim_k, table, token, pairing);
        auto stored = chunk.cache->store(qkv.layer, PartId::k, chunk.first + token, k_row);
        if (stored) {
            stored = chunk.cache->store(qkv.layer, PartId::v, chunk.first + token, v_.data() + token * v_width);
        }
        if (!stored) errors.note(token, std::move(stored).error());
    });
    return errors.status();
}

Status Executor::op(const model::Attention& attention, const Chunk& chunk) {
    const std::size_t n_tokens = chunk.tokens.size(), blocks = (n_tokens + query_block_tokens - 1) / query_block_tokens;
    const model::KvLayout& layout = program_.kv[attention.layer];
    const std::size_t group = attention.n_heads / layout.n_kv_heads;
    const float* q = at(attention.q);
    float* out = at(attention.out);
    // Late query blocks see the most keys: they are taken first.
    pool_.parallel_for(blocks * attention.n_heads, [&](std::size_t task, int) {
        const std::size_t head = task % attention.n_heads, block = blocks - 1 - task / attention.n_heads;
        const std::size_t begin = block * query_block_tokens, end = std::min(begin + query_block_tokens, n_tokens);
        const auto kv_head = static_cast<std::uint32_t>(head / group);
        kernels::AttentionArgs args;
        args.q_stride = width(attention.q);
        args.q = q + begin * args.q_stride + head * layout.head_dim_k;
        args.k = chunk.cache->view(attention.layer, PartId::k, kv_head);
        args.v = chunk.cache->view(attention.layer, PartId::v, kv_head);
        args.out_stride = width(attention.out);
        args.out = out + begin * args.out_stride + head * layout.head_dim_v;
        args.n_queries = end - begin;
        args.kv_tokens = chunk.first + end;
        args.first_position = chunk.first + begin;
        args.head_dim_k = layout.head_dim_k;
        args.head_dim_v = layout.head_dim_v;
        args.scale = attention.scale;
        args.window = attention.window;
        args.softcap = attention.softcap;
        kernels::ops().attention(args);
    });
    return {};
}

Status Executor::op(const model::ProjectAdd& project, const Chunk& chunk) {
    multiply_add(project.weight, project.norm, at(project.in), width(project.in), at(project.out), width(project.out),
                 chunk.tokens.size());
    return {};
}

Status Executor::op(const model::FfnAdd& ffn, const Chunk& chunk) {
    const std::size_t n_tokens = chunk.tokens.size(), rows = ffn.up.rows, block = rows_per_task(rows);
    const bool gated = ffn.gate.rows != 0;
    // What goes through the activation lies in gate_, gated or not.
    const Product activated{gated ? &ffn.gate : &ffn.up, at(ffn.in), width(ffn.in), gate_.data(), rows};
    const Product up{&ffn.up, at(ffn.in), width(ffn.in), up_.data(), rows};
    pool_.parallel_for((rows + block - 1) / block, [&](std::size_t task, int) {
        const std::size_t begin = task * block, end = std::min(begin + block, rows);
        multiply(activated, begin, end, n_tokens);
        if (gated) multiply(up, begin, end, n_tokens);
        for (std::size_t token = 0; token < n_tokens; ++token) {
            const std::size_t offset = token * rows + begin;
            activate(ffn.activation, gate_.data() + offset, gated ? up_.data() + offset : nullptr, end - begin);
        }
    });
    multiply_add(ffn.down, ffn.norm, gate_.data(), rows, at(ffn.out), width(ffn.out), n_tokens);
    return {};
}

Status Executor::op(const model::Head& head, const Chunk& chunk) {
    if (chunk.rows == Rows::none) return {};
    const std::size_t n_tokens = chunk.tokens.size(), hidden = width(head.in), vocab = head.weight.rows;
    const std::size_t first = chunk.rows == Rows::last ? n_tokens - 1 : 0;
    for (std::size_t begin = first; begin < n_tokens; begin += head_block_tokens) {
        const std::size_t count = std::min(head_block_tokens, n_tokens - begin);
        const float* in = at(head.in) + begin * hidden;
        pool_.parallel_for(count, [&](std::size_t token, int) {
            normalize(head.norm, in + token * hidden, head_normed_.data() + token * hidden, hidden);
        });
        const Product product{&head.weight, head_normed_.data(), hidden, logits_.data(), vocab};
        multiply_all({&product, 1}, count);
        if (head.softcap > 0) {
            pool_.parallel_for(count, [&](std::size_t token, int) {
                kernels::ops().softcap(logits_.data() + token * vocab, head.softcap, vocab);
            });
        }
        for (std::size_t token = 0; token < count && *chunk.on_logits; ++token) {
            HETERO_CHECK((*chunk.on_logits)(begin + token, {logits_.data() + token * vocab, vocab}));
        }
    }
    return {};
}

}  // namespace hetero::engine
