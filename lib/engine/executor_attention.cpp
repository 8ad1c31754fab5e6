// Attention over the cache: blocks of queries in prefill, spans of keys in decode.
#include <algorithm>

#include "engine/executor.h"
#include "engine/executor_parts.h"
#include "kernels/api/ops.h"
#include "quant/rotation.h"

namespace hetero::engine {

using kv::PartId;

namespace {

// A decode step divides a token's keys into spans of a length that depends on their number alone, so that threads have
// work and bits do not depend on them.
struct Spans {
    std::size_t begin, end;     // keys in sight
    std::size_t length, first;  // tokens of a span, and the first span's number
    [[nodiscard]] std::size_t count() const { return (end + length - 1) / length - first; }
};

Spans spans_at(std::uint64_t position, std::size_t window) {
    Spans spans{0, position + 1, 4 * kernels::kKvPageTokens, 0};
    if (window != 0 && spans.end > window) spans.begin = spans.end - window;
    while (spans.length * max_spans < spans.end) spans.length *= 2;
    spans.first = spans.begin / spans.length;
    return spans;
}

}  // namespace

// For `n_heads` query heads from `head` on, which share a KV head, and the queries from `token` on.
kernels::AttentionArgs Executor::attention_args(const model::Attention& attention, std::size_t head,
                                                std::size_t n_heads, std::size_t token) {
    const model::KvLayout& layout = program_.kv[attention.layer];
    const std::size_t group = attention.n_heads / layout.n_kv_heads;
    const std::size_t first_kv_head = share_.kv_heads(attention.n_heads, layout.n_kv_heads).begin;  // of the cache
    const auto kv_head = static_cast<std::uint32_t>(head / group - first_kv_head);
    kernels::AttentionArgs args;
    args.n_heads = n_heads;
    args.q_head_stride = layout.query_dim();
    args.out_head_stride = layout.output_dim();
    args.q_stride = width(attention.q);
    args.q = at(attention.q) + token * args.q_stride + head * layout.query_dim();
    args.k = caches_[token]->view(attention.layer, PartId::k, kv_head);
    args.v = caches_[token]->view(attention.layer, PartId::v, kv_head);
    args.out_stride = width(attention.out);
    args.out = at(attention.out) + token * args.out_stride + head * layout.output_dim();
    args.n_queries = 1;
    args.first_position = positions_[token];
    args.head_dim_k = layout.query_dim();
    args.head_dim_v = layout.output_dim();
    args.scale = attention.scale;
    args.window = attention.window;
    args.softcap = attention.softcap;
    args.exact = packed_ == nullptr;
    return args;
}

// Query heads of one KV head read it together, unless a rank has a part of them only, or threads would have fewer than
// `tasks_of_thread`; `tasks`: of one head.
std::size_t Executor::heads_together(const model::Attention& attention, std::size_t tasks,
                                     std::size_t tasks_of_thread) const {
    const Range heads = share_.heads(attention.n_heads);
    const std::size_t group = attention.n_heads / program_.kv[attention.layer].n_kv_heads;
    const auto threads = static_cast<std::size_t>(pool_.size());
    const bool whole_groups = heads.begin % group == 0 && heads.end % group == 0;
    const bool enough = threads == 1 || tasks * heads.size() / group >= tasks_of_thread * threads;
    return whole_groups && enough ? group : 1;
}

void Executor::attend_blocks(const model::Attention& attention, std::span<const QueryBlock> query_blocks) {
    const Range heads = share_.heads(attention.n_heads);
    // To convert the keys takes longer than what a few queries do with them.
    constexpr std::uint32_t few_queries = 8;
    const bool few = std::all_of(query_blocks.begin(), query_blocks.end(),
                                 [](const QueryBlock& block) { return block.end - block.begin <= few_queries; });
    const std::size_t together = heads_together(attention, query_blocks.size(), few ? 1 : 2);
    const std::size_t parts = heads.size() / together;
    pool_.parallel_for(query_blocks.size() * parts, [&](std::size_t task, int) {
        const auto& [piece, begin, end] = query_blocks[task / parts];
        kernels::AttentionArgs args = attention_args(attention, heads.begin + task % parts * together, together, begin);
        args.n_queries = end - begin;
        args.kv_tokens = positions_[end - 1] + 1;
        attention_(args);
    });
}

void Executor::attend_spans(const model::Attention& attention, std::size_t begin, std::size_t end) {
    const std::size_t dim = program_.kv[attention.layer].output_dim(), part = dim + 2;
    const Range heads = share_.heads(attention.n_heads);
    std::size_t n_spans = 0;
    for (std::size_t token = begin; token < end; ++token) {
        n_spans += spans_at(positions_[token], attention.window).count();
    }
    const std::size_t together = heads_together(attention, n_spans, 2), parts = heads.size() / together;
    // Spans that lie one after the other go to one thread together, which fetches what lies ahead.
    constexpr std::size_t tasks_of_thread = 8;
    const std::size_t run = std::clamp<std::size_t>(
        n_spans * parts / (tasks_of_thread * static_cast<std::size_t>(pool_.size())), 1, n_spans);
    const std::size_t runs = (n_spans + run - 1) / run;
    pool_.parallel_for(runs * parts, [&](std::size_t task, int) {
        const std::size_t head = task / runs * together, last = std::min((task % runs + 1) * run, n_spans);
        std::size_t token = begin, before = 0;
        Spans spans = spans_at(positions_[token], attention.window);
        for (std::size_t index = task % runs * run; index < last;) {
            for (; index - before >= spans.count(); spans = spans_at(positions_[++token], attention.window)) {
                before += spans.count();
            }
            const std::size_t count = spans.count(), span = index - before, n = std::min(count - span, last - index);
            const std::size_t from = (spans.first + span) * spans.length, to = from + n * spans.length;
            const kernels::AttentionArgs args = attention_args(attention, heads.begin + head, together, token);
            kernels::ops().attention_spans(args, std::max(from, spans.begin), std::min(to, spans.end), spans.length,
                                           spans_.data() + (before * heads.size() + head * count + span) * part,
                                           count * part);
            index += n;
        }
    });
    const float* parts_of_head = spans_.data();
    for (std::size_t token = begin; token < end; ++token) {
        const std::size_t count = spans_at(positions_[token], attention.window).count();
        for (std::size_t head = heads.begin; head < heads.end; ++head, parts_of_head += count * part) {
            kernels::ops().attention_merge(parts_of_head, count, dim,
                                           at(attention.out) + token * width(attention.out) + head * dim);
        }
    }
}

Status Executor::store_k(const model::Attention& attention, std::size_t begin, std::size_t end) {
    const model::KvLayout& layout = program_.kv[attention.layer];
    const std::size_t row = std::size_t{layout.n_kv_heads} * layout.head_dim_k;
    const std::size_t first = share_.kv_heads(attention.n_heads, layout.n_kv_heads).begin * layout.head_dim_k;
    for (std::size_t token = begin; token < end; ++token) {
        HETERO_CHECK(
            caches_[token]->store(attention.layer, PartId::k, positions_[token], k_.data() + token * row + first));
    }
    return {};
}

Status Executor::attend_groups(const model::Attention& attention, const Chunk& chunk) {
    std::uint32_t begin = 0;
    for (const Piece& piece : chunk.pieces) {
        const std::size_t group = piece.cache->group_tokens(attention.layer, PartId::k);
        for (std::size_t left = piece.tokens.size(); left != 0;) {
            const auto count =
                static_cast<std::uint32_t>(std::min<std::size_t>(left, group - positions_[begin] % group));
            HETERO_CHECK(store_k(attention, begin, begin + count));
            QueryBlock halves[2] = {{&piece, begin + count / 2, begin + count}, {&piece, begin, begin + count / 2}};
            attend_blocks(attention, {halves, count == 1 ? 1U : 2U});
            begin += count;
            left -= count;
        }
    }
    return {};
}

Status Executor::attend_steps(const model::Attention& attention, const Chunk& chunk) {
    if (caches_.front()->group_tokens(attention.layer, PartId::k) != 0) {
        HETERO_CHECK(store_k(attention, 0, chunk.n_tokens));
    }
    for (std::size_t begin = 0; begin < chunk.n_tokens;) {
        std::size_t end = begin, spans = 0;  // as many tokens as there is room for
        for (; end < chunk.n_tokens; ++end) {
            spans += spans_at(positions_[end], attention.window).count();
            if (spans > max_spans_at_once) break;
        }
        attend_spans(attention, begin, end);
        begin = end;
    }
    return {};
}

void Executor::rotate_heads(float* heads, std::size_t stride, const model::Attention& attention, std::size_t dim,
                            std::size_t n_tokens) {
    const Range own = share_.heads(attention.n_heads);
    pool_.parallel_for(n_tokens, [&](std::size_t token, int) {
        const std::span<float> row(heads + token * stride + own.begin * dim, own.size() * dim);
        quant::rotate(row, row, static_cast<std::uint32_t>(dim));
    });
}

Status Executor::op(const model::Attention& attention, const Chunk& chunk) {
    if (on_queries_) {
        const float* of_piece = at(attention.q);
        for (const Piece& piece : chunk.pieces) {
            HETERO_CHECK(on_queries_({attention, piece.first, piece.tokens.size(), of_piece, width(attention.q)}));
            of_piece += piece.tokens.size() * width(attention.q);
        }
    }
    const model::KvLayout& layout = program_.kv[attention.layer];
    const KvCache& cache = *caches_.front();  // all are of one pool
    if (cache.is_rotated(attention.layer, PartId::k)) {
        rotate_heads(at(attention.q), width(attention.q), attention, layout.query_dim(), chunk.n_tokens);
    }
    if (chunk.phase == Phase::decode) {
        HETERO_CHECK(attend_steps(attention, chunk));
    } else if (cache.group_tokens(attention.layer, PartId::k) != 0) {
        HETERO_CHECK(attend_groups(attention, chunk));
    } else {
        attend_blocks(attention, blocks_);
    }
    if (cache.is_rotated(attention.layer, PartId::v)) {
        rotate_heads(at(attention.out), width(attention.out), attention, layout.output_dim(), chunk.n_tokens);
    }
    if (layout.kind == model::KvLayout::Kind::latent) return {};  // HeadProject comes next, of the same heads
    return gather_heads(at(attention.out), attention.n_heads, layout.output_dim(), width(attention.out),
                        chunk.n_tokens);
}

}  // namespace hetero::engine
