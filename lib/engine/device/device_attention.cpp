// The ops that make K, V and queries, and attention over what is kept.
#include <algorithm>
#include <vector>

#include "engine/device/device_executor.h"
#include "kernels/api/device.h"

namespace hetero::engine {

using kv::PartId;

Status DeviceExecutor::rotate(const float* src, std::size_t src_stride, std::size_t src_head, float* dst,
                              std::size_t dst_stride, std::size_t dst_head, std::size_t n_heads, std::size_t dim,
                              std::size_t rope, const Chunk& chunk) {
    const RopeTable& table = ropes_[rope];
    const auto* cos = reinterpret_cast<const float*>(table.angles.get()) + chunk.begin * table.pairs;
    return check(ops_.rope(stream_.get(), {src, src_stride, src_head}, {dst, dst_stride, dst_head}, chunk.n_tokens,
                           n_heads, dim, cos, cos + table.most_tokens * table.pairs, table.pairs,
                           program_.ropes[rope].pairing));
}

// Tokens [begin, begin + n_tokens) of the batch.
Status DeviceExecutor::store(std::size_t layer, PartId part, const float* values, std::size_t stride, std::size_t begin,
                             std::size_t n_tokens) {
    auto* fault = reinterpret_cast<unsigned long long*>(faults_.get()) + 2 * layer + static_cast<std::size_t>(part);
    return check(ops_.kv_store(stream_.get(), pages_->part(layer, part), sequences(begin, n_tokens),
                               {values, stride, setup_.kv->head_dim(layer, part)}, fault));
}

Status DeviceExecutor::op(const model::Qkv& qkv, const Chunk& chunk) {
    const model::KvLayout& layout = program_.kv[qkv.layer];
    const std::size_t dim_k = layout.head_dim_k, q_width = width(qkv.q_out), k_width = qkv.k.rows;
    const std::size_t v_width = qkv.v.rows;
    const model::Matrix* const weights[] = {&qkv.q, &qkv.k, &qkv.v};
    HETERO_TRY(const Input in, input(qkv.in, chunk, weights));
    float* q = at(qkv.q_out);
    auto *k = as<float>(Scratch::k), *v = as<float>(Scratch::v);
    const Product products[] = {{qkv.q, q, q_width}, {qkv.k, k, k_width}, {qkv.v, v, v_width}};
    HETERO_CHECK(multiply(products, in, chunk));
    const RopeTable& table = ropes_[qkv.rope];
    kernels::DeviceQkv made;
    made.q = {q, q_width, dim_k};
    made.k = {k, k_width, dim_k};
    made.v = {v, v_width, layout.head_dim_v};
    made.n_heads = qkv.n_heads;
    if (qkv.q_norm) made.q_norm = weights_->norm(*qkv.q_norm);
    if (qkv.k_norm) made.k_norm = weights_->norm(*qkv.k_norm);
    made.cos = reinterpret_cast<const float*>(table.angles.get()) + chunk.begin * table.pairs;
    made.sin = made.cos + table.most_tokens * table.pairs;
    made.n_pairs = table.pairs;
    made.pairing = program_.ropes[qkv.rope].pairing;
    HETERO_CHECK(enter_layer(qkv.layer));
    // K in groups of tokens is stored by the attention op, in order.
    auto* error = reinterpret_cast<kernels::DeviceKvError*>(faults_.get()) + qkv.layer;
    return check(ops_.finish_qkv(stream_.get(), made, pages_->part(qkv.layer, PartId::k),
                                 pages_->part(qkv.layer, PartId::v), sequences(chunk.begin, chunk.n_tokens), error));
}

Status DeviceExecutor::op(const model::LatentKv& kv, const Chunk& chunk) {
    const model::KvLayout& layout = program_.kv[kv.layer];
    float* in = at(kv.in);
    const std::size_t stride = width(kv.in), rank = layout.head_dim_k;
    HETERO_CHECK(check(ops_.norm(stream_.get(), weights_->norm(kv.norm), {in, stride, rank}, chunk.n_tokens, 1, rank,
                                 false, {in, stride})));
    float* key = in + rank;
    HETERO_CHECK(
        rotate(key, stride, layout.head_dim_v, key, stride, layout.head_dim_v, 1, layout.head_dim_v, kv.rope, chunk));
    HETERO_CHECK(enter_layer(kv.layer));
    HETERO_CHECK(store(kv.layer, PartId::k, in, stride, chunk.begin, chunk.n_tokens));
    return store(kv.layer, PartId::v, key, stride, chunk.begin, chunk.n_tokens);
}

Status DeviceExecutor::op(const model::LatentQuery& query, const Chunk& chunk) {
    const model::KvLayout& layout = program_.kv[query.layer];
    const std::size_t plain = query.k_absorb.cols, rope_dim = layout.head_dim_v;
    const std::size_t in_head = plain + rope_dim, out_head = layout.query_dim();
    const float* in = at(query.in);
    float* out = at(query.out);
    const model::Matrix* const weights[] = {&query.k_absorb};
    HETERO_TRY(const Input x, input(query.in, chunk, weights));
    HETERO_CHECK(multiply_heads(query.k_absorb, query.n_heads, x, in_head, out, width(query.out), out_head, chunk));
    return rotate(in + plain, width(query.in), in_head, out + layout.head_dim_k, width(query.out), out_head,
                  query.n_heads, rope_dim, query.rope, chunk);
}

// Before a layer's K and V are touched: they are where ops find them, and the next layer's are on their way.
Status DeviceExecutor::enter_layer(std::size_t layer) {
    if (pages_->all_on_device()) return {};
    HETERO_CHECK(prefetch(layer));
    HETERO_CHECK(prefetch(layer + 1));
    return pages_->on_device(layer) ? Status{} : check(ops_.wait(stream_.get(), ready_[layer].get()));
}

// After attention: what the chunk has stored goes back to where the layer's K and V are kept.
Status DeviceExecutor::leave_layer(std::size_t layer, const Chunk& chunk) {
    if (pages_->on_device(layer)) return {};
    HETERO_CHECK(check(ops_.record(attended_[layer].get(), stream_.get())));
    HETERO_CHECK(check(ops_.wait(copies_.get(), attended_[layer].get())));
    std::size_t begin = 0;  // of the piece, in the batch
    for (const Piece& piece : chunk.pieces) {
        const std::size_t from = std::max(begin, chunk.begin);
        const std::size_t to = std::min(begin + piece.tokens.size(), chunk.begin + chunk.n_tokens);
        if (from < to) {
            const std::size_t first = (piece.first + from - begin) / KvPool::page_tokens;
            const std::size_t last = KvPool::pages_for(piece.first + to - begin);
            HETERO_CHECK(pages_->take_back(copies_.get(), layer, piece.cache->pages().subspan(first, last - first)));
        }
        begin += piece.tokens.size();
    }
    return {};
}

// Tokens [begin, begin + n_tokens) of the batch.
Status DeviceExecutor::attend(const model::Attention& attention, const Chunk& chunk, std::size_t begin,
                              std::size_t n_tokens) {
    const model::KvLayout& layout = program_.kv[attention.layer];
    const std::size_t row = begin - chunk.begin;
    kernels::DeviceAttention args;
    args.q = {at(attention.q) + row * width(attention.q), width(attention.q), layout.query_dim()};
    args.out = {at(attention.out) + row * width(attention.out), width(attention.out), layout.output_dim()};
    args.k = pages_->part(attention.layer, PartId::k);
    args.v = pages_->part(attention.layer, PartId::v);
    args.n_heads = attention.n_heads;
    args.query_dim = layout.query_dim();
    args.output_dim = layout.output_dim();
    args.scale = attention.scale;
    args.window = attention.window;
    args.softcap = attention.softcap;
    const bool by_token = chunk.phase == Phase::decode || setup_.precision == Precision::precise;
    if (!by_token) {
        return check(ops_.attention_prefill(stream_.get(), args, sequences(begin, n_tokens), batch_.max_tokens,
                                            scratch(Scratch::attention)));
    }
    const std::size_t most = std::max<std::size_t>(setup_.sequences, precise_query_tokens);
    for (std::size_t done = 0; done < n_tokens; done += most) {
        const std::size_t count = std::min(most, n_tokens - done);
        HETERO_CHECK(check(ops_.attention_decode(stream_.get(), args, sequences(begin + done, count), batch_.max_tokens,
                                                 scratch(Scratch::attention))));
        args.q.data += count * args.q.stride;
        args.out.data += count * args.out.stride;
    }
    return {};
}

Status DeviceExecutor::show_queries(const model::Attention& attention, const Chunk& chunk) {
    const std::size_t stride = width(attention.q);
    std::vector<float> queries(chunk.n_tokens * stride);
    HETERO_CHECK(check(ops_.copy(stream_.get(), queries.data(), at(attention.q), queries.size() * sizeof(float))));
    HETERO_CHECK(check(ops_.synchronize(stream_.get())));
    const float* of_piece = queries.data();
    if (chunk.pieces.size() == 1) {
        return on_queries_({attention, chunk.pieces.front().first + chunk.begin, chunk.n_tokens, of_piece, stride});
    }
    for (const Piece& piece : chunk.pieces) {
        HETERO_CHECK(on_queries_({attention, piece.first, piece.tokens.size(), of_piece, stride}));
        of_piece += piece.tokens.size() * stride;
    }
    return {};
}

Status DeviceExecutor::op(const model::Attention& attention, const Chunk& chunk) {
    if (on_queries_) HETERO_CHECK(show_queries(attention, chunk));
    const kernels::DeviceKv k_part = pages_->part(attention.layer, PartId::k);
    if (k_part.group_tokens == 0) {
        HETERO_CHECK(attend(attention, chunk, chunk.begin, chunk.n_tokens));
        return leave_layer(attention.layer, chunk);
    }
    // K in groups of tokens: those of one group after the other, each before its queries attend.
    const auto* k = as<float>(Scratch::k);
    const std::size_t k_width = k_part.n_heads * k_part.head_dim;
    if (chunk.phase == Phase::decode) {
        HETERO_CHECK(store(attention.layer, PartId::k, k, k_width, chunk.begin, chunk.n_tokens));
        HETERO_CHECK(attend(attention, chunk, chunk.begin, chunk.n_tokens));
        return leave_layer(attention.layer, chunk);
    }
    std::size_t of_piece = 0;
    for (const Piece& piece : chunk.pieces) {
        std::size_t begin = std::max(of_piece, chunk.begin);
        const std::size_t end = std::min(of_piece + piece.tokens.size(), chunk.begin + chunk.n_tokens);
        while (begin < end) {
            const std::uint64_t position = piece.first + begin - of_piece;
            const std::size_t count =
                std::min<std::size_t>(end - begin, k_part.group_tokens - position % k_part.group_tokens);
            HETERO_CHECK(store(attention.layer, PartId::k, k + (begin - chunk.begin) * k_width, k_width, begin, count));
            HETERO_CHECK(attend(attention, chunk, begin, count));
            begin += count;
        }
        of_piece += piece.tokens.size();
    }
    return leave_layer(attention.layer, chunk);
}

}  // namespace hetero::engine
