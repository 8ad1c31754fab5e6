#include "engine/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/executor_parts.h"
#include "kernels/api/ops.h"

namespace hetero::engine {
namespace {

using kv::PartId;

// Gate and up of one task, where an FFN is computed in blocks of rows.
std::uint64_t work_floats(const model::Program& program, std::size_t chunk_tokens, Precision precision) {
    const bool any = std::any_of(program.ops.begin(), program.ops.end(), [](const model::Op& op) {
        const auto* ffn = std::get_if<model::FfnAdd>(&op);
        return ffn != nullptr && is_packed(*ffn);
    });
    return any && precision == Precision::fast ? 2 * std::uint64_t{chunk_tokens} * ffn_block_rows : 0;
}

}  // namespace

Executor::Sizes Executor::sizes_of(const model::Program& program) {
    Sizes sizes{widths_of(program)};
    const auto widen = [](std::size_t& size, std::size_t to) { size = std::max(size, to); };
    const auto multiplied = [&](const model::Matrix& matrix, std::size_t rows_per_token = 1) {
        widen(sizes.quantized, kernels::activation_bytes(rows_per_token, matrix.cols));
        widen(sizes.tiled, matrix.cols);
    };
    const auto finely = [&](const model::Matrix& matrix) {
        multiplied(matrix, 2);
        widen(sizes.residual, matrix.cols);
    };
    for (const model::Op& any : program.ops) {
        if (const auto* qkv = std::get_if<model::Qkv>(&any)) {
            finely(qkv->q);
        } else if (const auto* attention = std::get_if<model::Attention>(&any)) {
            const std::size_t dim = program.kv[attention->layer].output_dim();
            widen(sizes.spans, attention->n_heads * max_spans_at_once * (dim + 2));
        } else if (const auto* plain = std::get_if<model::Project>(&any)) {
            multiplied(plain->weight);
        } else if (const auto* project = std::get_if<model::ProjectAdd>(&any)) {
            multiplied(project->weight);
        } else if (const auto* ffn = std::get_if<model::FfnAdd>(&any)) {
            multiplied(ffn->up);
            multiplied(ffn->down);
            widen(sizes.activated, kernels::activation_bytes(1, ffn->down.cols));
        } else if (const auto* moe = std::get_if<model::MoeAdd>(&any)) {
            multiplied(moe->router);
            multiplied(moe->experts.front().up, moe->rule.top_k);
            multiplied(moe->experts.front().down, moe->rule.top_k);
        } else if (const auto* head = std::get_if<model::Head>(&any)) {
            finely(head->weight);
        }
    }
    return sizes;
}

std::vector<Value> Executor::values_of(const model::Program& program, std::size_t chunk_tokens, Precision precision,
                                       int ranks) {
    using enum Scratch;
    const Sizes sizes = sizes_of(program);
    std::vector<Value> values(program.registers.size() + static_cast<std::size_t>(count_));
    const std::vector<std::vector<Range>> lives = lives_of(program);
    for (std::size_t i = 0; i < lives.size(); ++i) {
        values[i] = {chunk_tokens * program.registers[i].width * sizeof(float), lives[i]};
    }
    const auto scratch = [&](Scratch which) -> Value& {
        return values[program.registers.size() + static_cast<std::size_t>(which)];
    };
    const std::size_t head_tokens = std::min(chunk_tokens, head_block_tokens);
    scratch(k).bytes = chunk_tokens * sizes.k * sizeof(float);
    scratch(v).bytes = chunk_tokens * sizes.v * sizeof(float);
    scratch(product).bytes = chunk_tokens * sizes.product * sizeof(float);
    scratch(head_normed).bytes = head_tokens * sizes.hidden * sizeof(float);
    scratch(spans).bytes = sizes.spans * sizeof(float);
    scratch(logits).bytes = head_tokens * sizes.vocab * sizeof(float);
    if (precision == Precision::fast) {
        scratch(quantized).bytes = chunk_tokens * sizes.quantized;
        scratch(activated).bytes = chunk_tokens * sizes.activated;
    }
    scratch(k).lives = lives_of_k(program);
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
        const auto in_op = [&](std::initializer_list<Scratch> used) {
            for (const Scratch which : used) scratch(which).lives.push_back({i, i + 1});
        };
        const model::Op& op = program.ops[i];
        if (std::holds_alternative<model::Qkv>(op)) in_op({v, quantized});
        if (std::holds_alternative<model::Attention>(op)) in_op({spans});
        if (std::holds_alternative<model::Project>(op)) in_op({quantized});
        if (std::holds_alternative<model::ProjectAdd>(op)) in_op({product, quantized});
        if (const auto* ffn = std::get_if<model::FfnAdd>(&op)) {
            in_op({gate, up, product, quantized, activated});
            if (precision == Precision::fast && ranks == 1 && is_packed(*ffn)) continue;
            scratch(gate).bytes = scratch(up).bytes = chunk_tokens * sizes.ffn * sizeof(float);
        }
        if (std::holds_alternative<model::MoeAdd>(op)) in_op({quantized});
        if (std::holds_alternative<model::Head>(op)) in_op({head_normed, logits, quantized});
    }
    return values;
}

std::uint64_t Executor::bytes_needed(const model::Program& program, std::uint32_t chunk_tokens,
                                     const Communicator& group, Precision precision, Exec exec, int threads) {
    const Sizes sizes = sizes_of(program);
    std::uint64_t ropes = 0;
    for (const model::RopeConfig& rope : program.ropes) ropes += std::uint64_t{rope.rotary_dim} * chunk_tokens;
    const std::uint64_t gathered = group.size() == 1 ? 0 : 2 * std::max(gather_floats, sizes.vocab);  // sent, and all
    std::uint64_t tiled = 0, of_thread = work_floats(program, chunk_tokens, precision);
    if (precision == Precision::fast) {
        of_thread += kernels::activation_tile * sizes.residual;
        if (kernels::tile_ops() != nullptr)
            tiled = kernels::tiles_size(chunk_tokens, sizes.tiled) + kernels::tiles_size(chunk_tokens, sizes.ffn);
    }
    return arrange(values_of(program, chunk_tokens, precision, group.size()), exec).bytes +
           (ropes + gathered + static_cast<std::uint64_t>(threads) * of_thread) * sizeof(float) +
           Slots::bytes_needed(program, chunk_tokens) + tiled * sizeof(kernels::Bf16);
}

Executor::Executor(const model::Program& program, ThreadPool& pool, std::uint32_t chunk_tokens, Communicator& group,
                   std::shared_ptr<const PackedWeights> packed, Exec exec, std::uint32_t block_tokens)
    : program_(program),
      pool_(pool),
      group_(group),
      share_(group),
      sizes_(sizes_of(program)),
      chunk_tokens_(chunk_tokens),
      exec_(exec),
      ops_for_kv_(ops_for_kv(program)),
      block_tokens_(block_tokens),
      slots_(program, chunk_tokens),
      packed_(std::move(packed)),
      tile_ops_(packed_ != nullptr ? kernels::tile_ops() : nullptr),
      attention_(packed_ != nullptr ? kernels::prefill_attention() : nullptr),
      query_block_tokens_(attention_ != nullptr ? large_query_block_tokens : query_block_tokens),
      parts_(static_cast<std::size_t>(group.size())),
      part_bytes_(parts_.size()),
      sent_(group.size() == 1 ? 0 : gather_floats) {
    if (attention_ == nullptr) attention_ = kernels::ops().attention;
    const std::size_t tokens = chunk_tokens;
    ids_.reserve(tokens);
    positions_.reserve(tokens);
    caches_.reserve(tokens);
    blocks_.reserve(tokens);
    wanted_.reserve(tokens);
    for (const model::RopeConfig& rope : program.ropes) {
        const std::size_t values = std::max<std::size_t>(tokens, block_tokens) * (rope.rotary_dim / 2);
        ropes_.push_back({model::inverse_frequencies(rope), rope.attention_factor, std::vector<float>(values),
                          std::vector<float>(values)});
    }
    if (block_tokens != 0) {
        segments_ = segments_of(program);
        for (const model::Register index : segments_.carried)
            carried_.emplace_back(std::size_t{block_tokens} * program.registers[index].width);
    }
    const Precision precision = packed_ != nullptr ? Precision::fast : Precision::precise;
    const std::vector<Value> values = values_of(program, tokens, precision, group.size());
    const Arena arena = arrange(values, exec);
    const std::size_t bytes = std::max<std::size_t>(arena.bytes, 64);
    arena_ = {AlignedAllocator<std::byte>().allocate(bytes), FreeArena{bytes}};
    const std::size_t n_registers = program.registers.size();
    for (std::size_t i = 0; i < n_registers; ++i) {
        registers_.push_back(reinterpret_cast<float*>(arena_.get() + arena.offsets[i]));
    }
    const auto scratch = [&](Scratch which) {
        const std::size_t index = n_registers + static_cast<std::size_t>(which);
        return std::span(arena_.get() + arena.offsets[index], values[index].bytes);
    };
    const auto floats = [&](Scratch which) {
        const std::span<std::byte> memory = scratch(which);
        return std::span(reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float));
    };
    k_ = floats(Scratch::k);
    v_ = floats(Scratch::v);
    gate_ = floats(Scratch::gate);
    up_ = floats(Scratch::up);
    product_ = floats(Scratch::product);
    head_normed_ = floats(Scratch::head_normed);
    logits_ = floats(Scratch::logits);
    spans_ = floats(Scratch::spans);
    const auto codes = [&](Scratch which) {
        const std::span<std::byte> memory = scratch(which);
        return std::span(reinterpret_cast<std::uint8_t*>(memory.data()), memory.size());
    };
    quantized_ = codes(Scratch::quantized);
    activated_ = codes(Scratch::activated);
    const auto threads = static_cast<std::size_t>(pool.size());
    work_.resize(threads * work_floats(program, tokens, precision));
    if (precision == Precision::fast) residuals_.resize(threads * kernels::activation_tile * sizes_.residual);
    if (tile_ops_ != nullptr) {
        tiles_.resize(kernels::tiles_size(tokens, sizes_.tiled));
        activated_tiles_.resize(kernels::tiles_size(tokens, sizes_.ffn));
    }
    for_buffers(advise_small_pages);
}

// Makes room for the tokens, and lists what belongs to each.
Status Executor::place(std::span<const Piece> pieces, Rows rows) {
    ids_.clear();
    positions_.clear();
    caches_.clear();
    blocks_.clear();
    wanted_.clear();
    for (const Piece& piece : pieces) {
        const std::uint64_t end = piece.first + piece.tokens.size();
        HETERO_CHECK(piece.cache->prepare(piece.first, end));
        const auto begin = static_cast<std::uint32_t>(ids_.size());
        const auto count = static_cast<std::uint32_t>(piece.tokens.size());
        ids_.insert(ids_.end(), piece.tokens.begin(), piece.tokens.end());
        for (std::uint64_t position = piece.first; position < end; ++position) positions_.push_back(position);
        caches_.insert(caches_.end(), count, piece.cache);
        // Late blocks of a piece see the most keys: they are taken first.
        const std::uint32_t blocks = (count + query_block_tokens_ - 1) / query_block_tokens_;
        for (std::uint32_t block = blocks; block-- > 0;) {
            const std::uint32_t first = block * query_block_tokens_;
            blocks_.push_back({&piece, begin + first, begin + std::min(first + query_block_tokens_, count)});
        }
        if (rows == Rows::last) wanted_.push_back(begin + count - 1);
    }
    if (rows == Rows::all) {
        for (std::uint32_t token = 0; token < ids_.size(); ++token) wanted_.push_back(token);
    }
    return {};
}

Status Executor::run(std::span<const Piece> pieces, Phase phase, Rows rows, const LogitsFn& on_logits,
                     const LayerFn& on_layer) {
    HETERO_CHECK(check_pieces(pieces, chunk_tokens_, pieces.size()));
    tiling_ = phase == Phase::prefill ? tile_ops_ : nullptr;
    HETERO_CHECK(place(pieces, rows));
    take_pages(ids_.size());
    fill_rope(ids_.size());
    return run_ops(0, program_.ops.size(), {pieces, ids_.size(), phase, rows, &on_logits, &on_layer});
}

Status Executor::run_by_layer(const Piece& block, Rows rows, const LogitsFn& on_logits, const LayerFn& on_layer) {
    const std::size_t n_tokens = block.tokens.size();
    HETERO_CHECK(check_block(block, block_tokens_));
    // All pages at once: from here on the table of the cache stays as it is, and other threads may read what is done.
    HETERO_CHECK(block.cache->prepare(block.first, block.first + n_tokens));
    tiling_ = tile_ops_;
    take_pages(n_tokens);
    const std::vector<float*> own = registers_;
    Status done = for_chunks(n_tokens, chunk_tokens_, segments_, rows, [&](const SegmentChunk& part) -> Status {
        for (std::size_t i = 0; i < segments_.carried.size(); ++i) {
            const model::Register index = segments_.carried[i];
            registers_[index] = carried_[i].data() + part.begin * width(index);
        }
        rope_first_ = part.begin;
        const Piece piece{block.tokens.subspan(part.begin, part.n_tokens), block.first + part.begin, block.cache,
                          block.last};
        HETERO_CHECK(place({&piece, 1}, part.rows));
        if (part.begin_op == 0) fill_rope(part.n_tokens);
        const LogitsFn shifted = [&](std::size_t index, std::span<const float> logits) {
            return on_logits(part.begin + index, logits);
        };
        return run_ops(
            part.begin_op, part.end_op,
            {{&piece, 1}, part.n_tokens, Phase::prefill, part.rows, &shifted, part.last ? &on_layer : nullptr});
    });
    registers_ = own;
    rope_first_ = 0;
    return done;
}

template <class Visit>
void Executor::for_buffers(const Visit& visit) noexcept {
    const auto offer = [&visit](auto& values) { visit(values.data(), values.size() * sizeof values[0]); };
    visit(arena_.get(), arena_.get_deleter().bytes);
    for (AlignedVector<float>& values : carried_) offer(values);
    offer(tiles_);
    offer(activated_tiles_);
    offer(work_);
}

void Executor::take_pages(std::size_t n_tokens) noexcept {
    if (huge_pages_ || n_tokens < huge_page_tokens) return;
    for_buffers(advise_huge_pages);
    huge_pages_ = true;
}

void Executor::rest() noexcept {
    for_buffers(give_back_pages);
    for_buffers(advise_small_pages);
    huge_pages_ = false;
}

Status Executor::run_ops(std::size_t begin, std::size_t end, const Chunk& chunk) {
    if (chunk.rows == Rows::none) end = std::min(end, ops_for_kv_);
    rounded_ = nullptr;
    for (std::size_t i = begin; i < end; ++i) {
        const model::Op& any = program_.ops[i];
        HETERO_CHECK(std::visit([&](const auto& one) { return op(one, chunk); }, any));
        if (!std::holds_alternative<model::Normalize>(any)) rounded_ = nullptr;
        if (exec_ == Exec::eager && group_.size() == 1) HETERO_CHECK(look_at(any));
        const auto* attention = std::get_if<model::Attention>(&any);
        if (attention != nullptr && chunk.on_layer != nullptr && *chunk.on_layer)
            HETERO_CHECK((*chunk.on_layer)(attention->layer));
    }
    return {};
}

// What an op has written must be finite.
Status Executor::look_at(const model::Op& op) const {
    const std::optional<model::Register> out = written_by(op);
    if (!out) return {};
    const std::size_t columns = width(*out);
    for (std::size_t token = 0; token < positions_.size(); ++token) {
        const float* row = registers_[*out] + token * columns;
        for (std::size_t i = 0; i < columns; ++i) {
            if (std::isfinite(row[i])) continue;
            return fail(Errc::bad_input, "op {}, {}: {}[{}] at position {} is {}", &op - program_.ops.data(),
                        op_name(op), program_.registers[*out].name, i, positions_[token], row[i]);
        }
    }
    return {};
}

// Angles in double: at position 100,000 a float product is off by up to 0.004 rad.
void Executor::fill_rope(std::size_t n_tokens) {
    for (RopeTable& table : ropes_) {
        const std::size_t pairs = table.frequencies.size();
        for_tokens(n_tokens, 16 * pairs, [&](std::size_t token, int) {
            for (std::size_t pair = 0; pair < pairs; ++pair) {
                const double angle = static_cast<double>(positions_[token]) * table.frequencies[pair];
                const std::size_t at = (rope_first_ + token) * pairs + pair;
                table.cos[at] = static_cast<float>(std::cos(angle) * table.factor);
                table.sin[at] = static_cast<float>(std::sin(angle) * table.factor);
            }
        });
    }
}

kernels::RopeTable Executor::rope_table(std::size_t index) const {
    const RopeTable& rope = ropes_[index];
    const std::size_t pairs = rope.frequencies.size();
    return {rope.cos.data() + rope_first_ * pairs, rope.sin.data() + rope_first_ * pairs, pairs};
}

Status Executor::op(const model::Embed& embed, const Chunk& chunk) {
    const model::Matrix& table = embed.table;
    float* out = at(embed.out);
    for_tokens(chunk.n_tokens, table.cols, [&](std::size_t token, int) {
        const auto id = static_cast<std::size_t>(ids_[token]);
        float* row = out + token * table.cols;
        kernels::ops().dequantize(table.dtype, table.data + id * table.row_bytes, row, table.cols);
        if (!table.row_scale.empty()) kernels::ops().scale(row, table.row_scale[id], table.cols);
        if (embed.scale != 1) kernels::ops().scale(row, embed.scale, table.cols);
    });
    // A prompt's rows lie all over the table, and each maps its neighbours too.
    if (packed_ != nullptr && chunk.phase == Phase::prefill) packed_->forget(table, 0, table.rows);
    return {};
}

Status Executor::op(const model::Normalize& one, const Chunk& chunk) {
    const std::size_t n = width(one.in);
    const float* in = at(one.in);
    float* out = at(one.out);
    if (tiling_ == nullptr) {
        for_tokens(chunk.n_tokens, n,
                   [&](std::size_t token, int) { normalize(one.norm, in + token * n, out + token * n, n); });
        return {};
    }
    // Products read it next: it is rounded for them while it is near.
    constexpr std::size_t tile = kernels::tile_tokens;
    pool_.parallel_for((chunk.n_tokens + tile - 1) / tile, [&](std::size_t index, int) {
        const std::size_t begin = index * tile, end = std::min(begin + tile, chunk.n_tokens);
        for (std::size_t token = begin; token < end; ++token) normalize(one.norm, in + token * n, out + token * n, n);
        tiling_->round(out + begin * n, n, end - begin, {tiles_.data() + kernels::tiles_size(begin, n), n, 0, n});
    });
    rounded_ = out;
    return {};
}

Status Executor::op(const model::Qkv& qkv, const Chunk& chunk) {
    const std::size_t n_tokens = chunk.n_tokens, in_width = width(qkv.in), q_width = width(qkv.q_out);
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

    const kernels::RopeTable table = rope_table(qkv.rope);
    const kernels::RopePairing pairing = program_.ropes[qkv.rope].pairing;
    FirstError errors;
    for_tokens(n_tokens, q_width + k_width + v_width, [&](std::size_t token, int) {
        const kernels::Ops& ops = kernels::ops();
        float* q_row = q + token * q_width + heads.begin * dim_k;
        float* k_row = k_.data() + token * k_width + kv_heads.begin * dim_k;
        const float* v_row = v_.data() + token * v_width + kv_heads.begin * dim_v;
        if (qkv.q_norm) normalize_heads(*qkv.q_norm, q_row, heads.size(), dim_k);
        if (qkv.k_norm) normalize_heads(*qkv.k_norm, k_row, kv_heads.size(), dim_k);
        ops.rope(q_row, q_row, heads.size(), dim_k, table, token, pairing);
        ops.rope(k_row, k_row, kv_heads.size(), dim_k, table, token, pairing);
        Status stored;  // K in groups of tokens: by the attention op, in order
        if (caches_[token]->group_tokens(qkv.layer, PartId::k) == 0) {
            stored = caches_[token]->store(qkv.layer, PartId::k, positions_[token], k_row);
        }
        if (stored) stored = caches_[token]->store(qkv.layer, PartId::v, positions_[token], v_row);
        if (!stored) errors.note(token, std::move(stored).error());
    });
    return errors.status();
}

Status Executor::op(const model::Project& project, const Chunk& chunk) {
    const std::size_t rows = project.weight.rows, n_tokens = chunk.n_tokens, out_width = width(project.out);
    const Range own =
        project.n_heads == 0 ? share_.rows(rows) : share_.heads(project.n_heads).times(rows / project.n_heads);
    Product product{&project.weight, at(project.in), width(project.in), at(project.out), out_width, own};
    multiply_all({&product, 1}, n_tokens);
    return project.n_heads == 0 ? gather_rows(at(project.out), rows, out_width, n_tokens) : Status{};
}

Status Executor::op(const model::ProjectAdd& project, const Chunk& chunk) {
    return multiply_add(project.weight, project.norm, at(project.in), width(project.in), at(project.out),
                        width(project.out), chunk.n_tokens);
}

Status Executor::op(const model::FfnAdd& ffn, const Chunk& chunk) {
    const std::size_t n_tokens = chunk.n_tokens, rows = ffn.up.rows;
    const Range own = share_.rows(rows);
    const std::size_t block = rows_per_task(own.size());
    const bool gated = ffn.gate.rows != 0;
    // What goes through the activation lies in gate_, gated or not.
    Product products[] = {{gated ? &ffn.gate : &ffn.up, at(ffn.in), width(ffn.in), gate_.data(), rows},
                          {&ffn.up, at(ffn.in), width(ffn.in), up_.data(), rows}};
    const Product &activated = products[0], &up = products[1];
    prepare(products, n_tokens);
    const bool alone = parts_.size() == 1;
    if (packed_ != nullptr && is_packed(ffn) && (tiling_ != nullptr || alone)) {
        tiling_ != nullptr ? activate_tiles(ffn, products, n_tokens) : activate_codes(ffn, products, n_tokens);
        if (!alone) HETERO_CHECK(gather_rows(gate_.data(), rows, rows, n_tokens));
        return multiply_add(ffn.down, ffn.norm, alone ? nullptr : gate_.data(), rows, at(ffn.out), width(ffn.out),
                            n_tokens);
    }
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
    const std::size_t n_wanted = wanted_.size(), hidden = width(head.in), vocab = head.weight.rows;
    const Range own = share_.rows(vocab);
    for (std::size_t begin = 0; begin < n_wanted; begin += head_block_tokens) {
        const std::size_t count = std::min(head_block_tokens, n_wanted - begin);
        const float* in = at(head.in);
        for_tokens(count, hidden, [&](std::size_t token, int) {
            normalize(head.norm, in + wanted_[begin + token] * hidden, head_normed_.data() + token * hidden, hidden);
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
            HETERO_CHECK((*chunk.on_logits)(wanted_[begin + token], {logits_.data() + token * vocab, vocab}));
        }
    }
    return {};
}

}  // namespace hetero::engine
