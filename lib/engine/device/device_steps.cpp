// A step: what the host says of its tokens, the ops in order, and what comes back.
#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/device/device_executor.h"
#include "kernels/api/device.h"

namespace hetero::engine {

using kv::PartId;

namespace {

constexpr unsigned long long no_fault = ~0ULL;
constexpr std::size_t least_bucket = 256;  // tokens
constexpr std::size_t most_graphs = 64;    // that are kept

template <class T>
T* in(const PinnedBytes& memory, std::size_t offset) {
    return reinterpret_cast<T*>(memory.get() + offset);
}

}  // namespace

// Makes room for the tokens, and tells the device of them. `hands_out`: layers are, while the step runs.
Status DeviceExecutor::begin_step(std::span<const Piece> pieces, Phase phase, bool hands_out) {
    std::size_t n_tokens = 0, end = 0;
    for (const Piece& piece : pieces) {
        n_tokens += piece.tokens.size();
        end = std::max<std::size_t>(end, piece.first + piece.tokens.size());
    }
    // Steps of graphs are alike up to a power of two.
    if (phase == Phase::decode)
        end = std::min<std::size_t>(std::max(std::bit_ceil(end), least_bucket), setup_.capacity);
    HETERO_CHECK(check(ops_.wait(stream_.get(), put_.get())));  // before a page is copied
    batch_ = Batch::of(n_tokens, pieces.size(), end);
    slot_layer_ = {-1, -1};
    if (coded_ != nullptr) coded_->forget();
    rounded_ = false;
    in_flight_.clear();
    auto* ids = in<std::int32_t>(batch_host_, 0);
    auto* positions = in<std::int32_t>(batch_host_, batch_.positions);
    auto* sequence = in<std::int32_t>(batch_host_, batch_.sequence);
    std::size_t token = 0;
    for (std::size_t s = 0; s < pieces.size(); ++s) {
        const Piece& piece = pieces[s];
        HETERO_CHECK(piece.cache->prepare(piece.first, piece.first + piece.tokens.size()));
        for (std::size_t i = 0; i < piece.tokens.size(); ++i, ++token) {
            ids[token] = piece.tokens[i];
            positions[token] = static_cast<std::int32_t>(piece.first + i);
            sequence[token] = static_cast<std::int32_t>(s);
        }
        std::uint16_t* tail = nullptr;
        if (!tails_->none()) {
            HETERO_TRY(tail, tails_->bring(stream_.get(), *piece.cache, piece.first + piece.tokens.size()));
        }
        in<std::uint16_t*>(batch_host_, batch_.tails)[s] = tail;
        auto* pages = in<std::uint32_t>(batch_host_, batch_.pages) + s * batch_.max_pages;
        std::span<const KvPool::Page> held = piece.cache->pages();
        held = held.first(std::min(held.size(), batch_.max_pages));
        std::fill(std::copy(held.begin(), held.end(), pages), pages + batch_.max_pages, 0U);
        in_flight_.insert(in_flight_.end(), held.begin(), held.end());
    }
    if (pieces.size() > 1) {  // they may share pages
        std::sort(in_flight_.begin(), in_flight_.end());
        in_flight_.erase(std::unique(in_flight_.begin(), in_flight_.end()), in_flight_.end());
    }
    if ((hands_out && coded_ == nullptr) || !pages_->all_on_device()) pages_->lock(in_flight_);
    return check(ops_.copy(stream_.get(), batch_device_.get(), batch_host_.get(), batch_.bytes));
}

kernels::DeviceSequences DeviceExecutor::sequences(std::size_t begin, std::size_t n_tokens) const {
    const auto there = [this](std::size_t offset) { return batch_device_.get() + offset; };
    kernels::DeviceSequences out;
    out.pages = reinterpret_cast<const std::uint32_t*>(there(batch_.pages));
    out.max_pages = batch_.max_pages;
    if (!tails_->none()) out.tails = reinterpret_cast<std::uint16_t* const*>(there(batch_.tails));
    out.sequence = reinterpret_cast<const std::int32_t*>(there(batch_.sequence)) + begin;
    out.position = reinterpret_cast<const std::int32_t*>(there(batch_.positions)) + begin;
    out.n_tokens = n_tokens;
    return out;
}

Status DeviceExecutor::fill_rope(std::size_t n_tokens) {
    const kernels::DeviceSequences all = sequences(0, n_tokens);
    for (const RopeTable& table : ropes_) {
        if (table.pairs == 0) continue;
        auto* cos = reinterpret_cast<float*>(table.angles.get());
        HETERO_CHECK(
            check(ops_.rope_angles(stream_.get(), reinterpret_cast<const double*>(table.frequencies.get()), table.pairs,
                                   table.factor, all.position, n_tokens, cos, cos + table.most_tokens * table.pairs)));
    }
    return check(ops_.fill(stream_.get(), faults_.get(), 0xFF, n_faults_ * sizeof(no_fault)));
}

// After an error the streams may still have work that reads what the caller is about to give back.
Status DeviceExecutor::settle(Status status) {
    handing_.clear();
    hand_to_ = nullptr;
    for (const Stream* stream : {&stream_, &copies_}) {
        Status settled = check(ops_.synchronize(stream->get()));
        if (status && !settled) status = std::move(settled);
    }
    return status;
}

Status DeviceExecutor::run(std::span<const Piece> pieces, Phase phase, Rows rows, const LogitsFn& on_logits,
                           const LayerFn& on_layer) {
    return settle(run_step({0, 0, phase, rows, pieces, &on_logits, &on_layer}));
}

Status DeviceExecutor::step(std::span<const Piece> pieces, const LikeliestWanted& wanted,
                            const LikeliestFn& on_likeliest, const LogitsFn& on_logits) {
    return settle(run_step({0, 0, Phase::decode, Rows::last, pieces, &on_logits, nullptr, wanted, &on_likeliest}));
}

Status DeviceExecutor::run_step(Chunk chunk) {
    const std::span<const Piece> pieces = chunk.pieces;
    HETERO_CHECK(check_pieces(pieces, setup_.chunk_tokens, setup_.sequences));
    HETERO_CHECK(begin_step(pieces, chunk.phase, chunk.on_layer != nullptr && *chunk.on_layer));
    chunk.n_tokens = batch_.n_tokens;
    const bool one_graph = chunk.phase == Phase::decode && setup_.exec == Exec::graph && !on_queries_ &&
                           pages_->all_on_device() && batch_.n_tokens <= head_block_tokens &&
                           batch_.n_tokens == pieces.size() && chunk.rows == Rows::last;
    if (one_graph) return run_graph(chunk);
    HETERO_CHECK(fill_rope(batch_.n_tokens));
    if (!pages_->all_on_device()) HETERO_CHECK(prefetch(0));
    HETERO_CHECK(run_ops(0, program_.ops.size(), chunk));
    return finish();
}

Status DeviceExecutor::run_graph(const Chunk& chunk) {
    Chunk quiet = chunk;
    quiet.on_logits = nullptr;
    quiet.on_layer = nullptr;
    const auto put_in = [&]() -> Status {
        HETERO_CHECK(fill_rope(batch_.n_tokens));
        HETERO_CHECK(run_ops(0, program_.ops.size(), quiet));
        HETERO_CHECK(bring_logits(batch_.n_tokens, chunk));
        return check(
            ops_.copy(stream_.get(), faults_host_.get(), faults_.get(), n_faults_ * sizeof(unsigned long long)));
    };
    // What failed is neither a first run nor a graph: the next step of this shape begins anew.
    const GraphKey key{batch_.n_tokens, batch_.max_tokens, chunk.wanted.count, chunk.wanted.temperature};
    const auto found = graphs_.find(key);
    if (found == graphs_.end()) {
        HETERO_CHECK(put_in());
        HETERO_CHECK(check(ops_.synchronize(stream_.get())));
        if (graphs_.size() == most_graphs) graphs_.clear();
        graphs_.try_emplace(key);
    } else {
        if (found->second == nullptr) {
            HETERO_CHECK(check(ops_.begin_capture(stream_.get())));
            Status captured = put_in();
            kernels::DeviceGraph recorded = nullptr;
            const kernels::DeviceFault ended = ops_.end_capture(stream_.get(), &recorded);
            Graph graph(recorded, {&ops_});
            HETERO_CHECK(captured);
            HETERO_CHECK(check(ended));
            found->second = std::move(graph);
        }
        HETERO_CHECK(check(ops_.launch_graph(found->second.get(), stream_.get())));
        HETERO_CHECK(check(ops_.synchronize(stream_.get())));
    }
    HETERO_CHECK(check_faults());
    return give_logits(0, batch_.n_tokens, chunk);
}

Status DeviceExecutor::run_by_layer(const Piece& block, Rows rows, const LogitsFn& on_logits, const LayerFn& on_layer) {
    HETERO_CHECK(check_block(block, setup_.block_tokens));
    const std::vector<float*> own = registers_;
    Status done = settle(run_block(block, rows, on_logits, on_layer));
    registers_ = own;
    return done;
}

Status DeviceExecutor::run_block(const Piece& block, Rows rows, const LogitsFn& on_logits, const LayerFn& on_layer) {
    const std::size_t n_tokens = block.tokens.size();
    const std::span<const Piece> pieces(&block, 1);
    HETERO_CHECK(begin_step(pieces, Phase::prefill, static_cast<bool>(on_layer)));
    HETERO_CHECK(fill_rope(n_tokens));
    if (!pages_->all_on_device()) HETERO_CHECK(prefetch(0));
    HETERO_CHECK(for_chunks(n_tokens, setup_.chunk_tokens, segments_, rows, [&](const SegmentChunk& part) -> Status {
        for (std::size_t i = 0; i < segments_.carried.size(); ++i) {
            const model::Register index = segments_.carried[i];
            registers_[index] = reinterpret_cast<float*>(carried_[i].get()) + part.begin * width(index);
        }
        return run_ops(part.begin_op, part.end_op,
                       {part.begin, part.n_tokens, Phase::prefill, part.rows, pieces, &on_logits,
                        part.last ? &on_layer : nullptr});
    }));
    return finish();
}

Status DeviceExecutor::run_ops(std::size_t begin, std::size_t end, const Chunk& chunk) {
    if (chunk.rows == Rows::none) end = std::min(end, ops_for_kv_);
    rounded_ = false;
    for (std::size_t i = begin; i < end; ++i) {
        const model::Op& any = program_.ops[i];
        op_ = i;
        HETERO_CHECK(std::visit([&](const auto& one) { return op(one, chunk); }, any));
        // What a norm has rounded is read by the products right after it.
        if (rounded_ && written_by(any) == rounded_register_ && !std::holds_alternative<model::Normalize>(any))
            rounded_ = false;
        if (setup_.exec == Exec::eager) HETERO_CHECK(look_at(any, chunk));
        const auto* attention = std::get_if<model::Attention>(&any);
        if (attention != nullptr && chunk.on_layer != nullptr && *chunk.on_layer)
            HETERO_CHECK(hand_out(attention->layer, chunk));
    }
    return {};
}

// What an op has written must be finite.
Status DeviceExecutor::look_at(const model::Op& op, const Chunk& chunk) {
    const std::optional<model::Register> out = written_by(op);
    if (!out) return {};
    const std::size_t columns = width(*out);
    if (!std::holds_alternative<model::MoeAdd>(op)) {  // the router's scores were looked at
        HETERO_CHECK(
            check(ops_.find_not_finite(stream_.get(), at(*out), columns, chunk.n_tokens, columns, op_fault())));
    }
    HETERO_CHECK(check(ops_.copy(stream_.get(), faults_host_.get(), faults_.get(), n_faults_ * sizeof(no_fault))));
    HETERO_CHECK(check(ops_.synchronize(stream_.get())));
    return check_faults();
}

unsigned long long* DeviceExecutor::op_fault() const {
    return reinterpret_cast<unsigned long long*>(faults_.get()) + 2 * program_.kv.size() + op_;
}

Status DeviceExecutor::kv_fault(std::size_t layer) const {
    const auto* faults = reinterpret_cast<const unsigned long long*>(faults_host_.get());
    for (const PartId part : {PartId::k, PartId::v}) {
        const unsigned long long place = faults[2 * layer + static_cast<std::size_t>(part)];
        if (place == no_fault) continue;
        const KvPool& pool = *setup_.kv;
        const std::size_t dim = pool.head_dim(layer, part), heads = pool.heads(layer);
        const kernels::DType type = pool.dtype();
        return fail(Errc::bad_input,
                    "layer {}, {}, token {}, head {}, dim {}: the value does not fit {} or is not a number; use {}, or "
                    "the weights or the state are damaged",
                    layer, kv::part_name(part), place / (heads * dim), place / dim % heads, place % dim,
                    kernels::dtype_info(type).name, type == kernels::DType::f16 ? "bf16" : "f32");
    }
    return {};
}

Status DeviceExecutor::check_faults() const {
    const auto* faults = reinterpret_cast<const unsigned long long*>(faults_host_.get());
    for (std::size_t layer = 0; layer < program_.kv.size(); ++layer) HETERO_CHECK(kv_fault(layer));
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
        const unsigned long long place = faults[2 * program_.kv.size() + i];
        if (place == no_fault) continue;
        const model::Op& op = program_.ops[i];
        const auto* positions = in<const std::int32_t>(batch_host_, batch_.positions);
        if (const auto* moe = std::get_if<model::MoeAdd>(&op)) {
            const std::size_t experts = moe->experts.size();
            return fail(Errc::bad_input, "{}: the score of token {} for expert {} is not finite", moe->router.name,
                        positions[place / experts], place % experts);
        }
        const model::Register out = *written_by(op);
        return fail(Errc::bad_input, "op {}, {}: {}[{}] at position {} is not finite", i, op_name(op),
                    program_.registers[out].name, place % width(out), positions[place / width(out)]);
    }
    return {};
}

Status DeviceExecutor::finish() {
    HETERO_CHECK(deliver());
    HETERO_CHECK(
        check(ops_.copy(stream_.get(), faults_host_.get(), faults_.get(), n_faults_ * sizeof(unsigned long long))));
    HETERO_CHECK(check(ops_.synchronize(stream_.get())));
    HETERO_CHECK(check(ops_.synchronize(copies_.get())));
    return check_faults();
}

// Begins to bring K and V of a layer to the pool's memory, or codes of them to a buffer, and gives those of the layer
// before it to whom they are for: the device computes on meanwhile.
Status DeviceExecutor::hand_out(std::uint32_t layer, const Chunk& chunk) {
    const Piece& piece = chunk.pieces.front();
    const std::uint64_t end = piece.first + piece.tokens.size();
    HETERO_CHECK(check(ops_.record(computed_.get(), stream_.get())));
    HETERO_CHECK(check(ops_.wait(copies_.get(), computed_.get())));
    if (coded_ == nullptr) {
        HETERO_CHECK(bring_to_host(*piece.cache, layer, end));
    } else if (piece.last) {
        HETERO_CHECK(coded_->begin(copies_.get(), *pages_, sequences(0, 0), layer, end));
    }
    const std::size_t faults = 2 * layer * sizeof(unsigned long long);
    HETERO_CHECK(check(
        ops_.copy(copies_.get(), faults_host_.get() + faults, faults_.get() + faults, 2 * sizeof(unsigned long long))));
    HETERO_CHECK(check(ops_.record(handed_[layer].get(), copies_.get())));
    hand_to_ = chunk.on_layer;
    HETERO_CHECK(deliver());
    handing_.push_back({layer, piece.cache, end, piece.last});
    return {};
}

Status DeviceExecutor::deliver() {
    while (!handing_.empty()) {
        const Handing one = handing_.front();
        handing_.pop_front();
        HETERO_CHECK(check(ops_.synchronize_event(handed_[one.layer].get())));
        HETERO_CHECK(kv_fault(one.layer));
        if (coded_ == nullptr) {
            arrived(*one.cache, one.layer, one.end);
        } else if (one.whole) {
            HETERO_TRY(const bool coded, coded_->finish(one.layer));
            if (!coded) HETERO_CHECK(fetch(*one.cache, one.layer, 0, one.end));  // its codec says why, here
        }
        HETERO_CHECK((*hand_to_)(one.layer));
    }
    return {};
}

// Of a layer's pages what the pool's memory lacks; when the stream has passed that, arrived().
Status DeviceExecutor::bring_to_host(KvCache& cache, std::size_t layer, std::uint64_t end) {
    const std::size_t held = cache.in_memory(layer) / KvPool::page_tokens;
    HETERO_CHECK(pages_->to_host(copies_.get(), layer, cache.pages().subspan(held, KvPool::pages_for(end) - held)));
    return tails_->fetch(copies_.get(), cache, layer);
}

void DeviceExecutor::arrived(KvCache& cache, std::size_t layer, std::uint64_t end) const {
    tails_->fetched(cache, layer);
    cache.set_in_memory(layer, end);
}

// Brings what a layer keeps in the host's memory to its slot, which the layer two before it has left.
Status DeviceExecutor::prefetch(std::size_t layer) {
    if (layer >= program_.kv.size() || pages_->on_device(layer)) return {};
    if (slot_layer_[layer % 2] == static_cast<std::int64_t>(layer)) return {};
    slot_layer_[layer % 2] = static_cast<std::int64_t>(layer);
    HETERO_CHECK(pages_->bring(copies_.get(), layer, in_flight_));
    return check(ops_.record(ready_[layer].get(), copies_.get()));
}

Status DeviceExecutor::fetch(KvCache& cache, std::size_t layer, std::uint64_t /*first*/, std::uint64_t end) {
    if (cache.in_memory(layer) >= end) return {};
    HETERO_CHECK(bring_to_host(cache, layer, end));
    HETERO_CHECK(check(ops_.synchronize(copies_.get())));
    arrived(cache, layer, end);
    return {};
}

Status DeviceExecutor::put(KvCache& cache, std::size_t layer, std::uint64_t first, std::uint64_t end) {
    DeviceTails::forget(cache);
    const std::size_t from = first / KvPool::page_tokens, to = KvPool::pages_for(end);
    HETERO_CHECK(pages_->to_device(copies_.get(), layer, cache.pages().subspan(from, to - from)));
    cache.set_in_memory(layer, end);
    return check(ops_.record(put_.get(), copies_.get()));
}

// Codes of a group that is opened again are read from the pool's memory.
Status DeviceExecutor::truncating(KvCache& cache, std::uint64_t n_tokens) {
    if (tails_->none()) return {};
    const bool inside = n_tokens < cache.pages().size() * KvPool::page_tokens;
    for (std::size_t layer = 0; layer < program_.kv.size(); ++layer) {
        if (inside) {
            const KvPool::Page page[] = {cache.pages()[n_tokens / KvPool::page_tokens]};
            HETERO_CHECK(pages_->to_host(copies_.get(), layer, page));
        }
        HETERO_CHECK(tails_->fetch(copies_.get(), cache, layer));
    }
    HETERO_CHECK(check(ops_.synchronize(copies_.get())));
    for (std::size_t layer = 0; layer < program_.kv.size(); ++layer) tails_->fetched(cache, layer);
    DeviceTails::forget(cache);
    return {};
}

}  // namespace hetero::engine
