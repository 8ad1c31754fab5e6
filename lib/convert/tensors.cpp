#include "convert/tensors.h"

#include <algorithm>
#include <map>

namespace hetero::convert {
namespace {

using model::Container;

// Which rows of each head are to be interleaved; none: as they are.
struct Interleaved {
    std::uint64_t head_rows = 0, first = 0, rows = 0;
};

class Mapper {
public:
    Mapper(const model::Config& config, const model::Family& family)
        : from_(family.decoder(Container::folder)), to_(family.decoder(Container::gguf)), config_(config) {}

    void map(bool interleaved) {
        const model::DecoderNames &from = from_.names, &to = to_.names;
        matrix(from.embedding, to.embedding, config_.vocab_size, config_.hidden);
        norm(from.final_norm, to.final_norm, config_.hidden);
        if (!config_.tied_embeddings) matrix(from.head, to.head, config_.vocab_size, config_.hidden);
        for (std::uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            from_prefix_ = fmt::format(fmt::runtime(from.layer), layer);
            to_prefix_ = fmt::format(fmt::runtime(to.layer), layer);
            norm(from.attn_norm, to.attn_norm, config_.hidden);
            if (config_.latent)
                latent_attention(*config_.latent);
            else
                attention(interleaved);
            norm(from.attn_post_norm, to.attn_post_norm, config_.hidden);
            norm(from.ffn_norm, to.ffn_norm, config_.hidden);
            if (config_.moe && config_.moe->layers[layer])
                experts(*config_.moe);
            else
                ffn(from.gate, to.gate, from.up, to.up, from.down, to.down, config_.ffn);
            norm(from.ffn_post_norm, to.ffn_post_norm, config_.hidden);
        }
    }

    std::vector<TensorPlan> plans;

private:
    using Name = std::string_view;

    // Nothing where the family has no such tensor.
    TensorPlan* add(Name from, Name to, std::uint64_t rows, std::uint64_t cols) {
        if (from.empty()) return nullptr;
        plans.push_back(renamed(to_prefix_ + std::string(to), from_prefix_ + std::string(from), rows, cols));
        return &plans.back();
    }
    void matrix(Name from, Name to, std::uint64_t rows, std::uint64_t cols, const Interleaved& order = {}) {
        TensorPlan* plan = add(from, to, rows, cols);
        if (plan == nullptr) return;
        plan->quantizable = true;
        if (order.rows == 0) return;
        Piece& piece = plan->pieces.front();
        piece.order = RowOrder::interleave;
        piece.head_rows = order.head_rows;
        piece.rotary_first = order.first;
        piece.rotary_rows = order.rows;
    }
    void vector(Name from, Name to, std::uint64_t size) { add(from, to, 0, size); }
    void norm(Name from, Name to, std::uint64_t size) {
        if (TensorPlan* plan = add(from, to, 0, size)) plan->add = from_.norm_offset - to_.norm_offset;
    }

    void attention(bool interleaved) {
        const model::DecoderNames &from = from_.names, &to = to_.names;
        const std::uint64_t hidden = config_.hidden, head_dim = config_.head_dim;
        const std::uint64_t q_rows = config_.n_heads * head_dim, kv_rows = config_.n_kv_heads * head_dim;
        if (!from.qkv.empty()) {
            matrix(from.qkv, to.qkv, q_rows + 2 * kv_rows, hidden);
        } else {
            const Interleaved order = interleaved ? Interleaved{head_dim, 0, config_.rope.rotary_dim} : Interleaved{};
            matrix(from.q, to.q, q_rows, hidden, order);
            matrix(from.k, to.k, kv_rows, hidden, order);
            matrix(from.v, to.v, kv_rows, hidden);
        }
        vector(from.q_bias, to.q_bias, q_rows);
        vector(from.k_bias, to.k_bias, kv_rows);
        vector(from.v_bias, to.v_bias, kv_rows);
        norm(from.q_norm, to.q_norm, head_dim);
        norm(from.k_norm, to.k_norm, head_dim);
        matrix(from.o, to.o, hidden, q_rows);
    }

    // The way from latents to keys and values is one matrix in a folder, and two in a GGUF: keys transposed.
    void latent_attention(const model::LatentConfig& latent) {
        const model::LatentNames &from = *from_.latent, &to = *to_.latent;
        const std::uint64_t hidden = config_.hidden, heads = config_.n_heads, rank = latent.kv_rank;
        const std::uint64_t plain = latent.plain_dim, rope = latent.rope_dim, v_dim = latent.v_dim;
        // A GGUF has pairs side by side; most checkpoints do too.
        const bool halves = config_.rope.pairing == kernels::RopePairing::half_split;
        const Interleaved q_order = halves ? Interleaved{plain + rope, plain, rope} : Interleaved{};
        const Interleaved kv_order = halves ? Interleaved{rank + rope, rank, rope} : Interleaved{};
        if (latent.q_rank == 0) {
            matrix(from.q, to.q, heads * (plain + rope), hidden, q_order);
        } else {
            matrix(from.q_a, to.q_a, latent.q_rank, hidden);
            norm(from.q_a_norm, to.q_a_norm, latent.q_rank);
            matrix(from.q_b, to.q_b, heads * (plain + rope), latent.q_rank, q_order);
        }
        matrix(from.kv_a, to.kv_a, rank + rope, hidden, kv_order);
        norm(from.kv_a_norm, to.kv_a_norm, rank);
        TensorPlan keys{to_prefix_ + std::string(to.k_b), {heads, rank, plain}, {}, 0, {}, true};
        TensorPlan values{to_prefix_ + std::string(to.v_b), {heads, v_dim, rank}, {}, 0, {}, true};
        for (std::uint64_t head = 0; head < heads; ++head) {
            Piece piece;
            piece.source = from_prefix_ + std::string(from.kv_b);
            piece.cols = rank;
            piece.first_row = head * (plain + v_dim);
            piece.rows = plain;
            piece.transpose = true;
            keys.pieces.push_back(piece);
            piece.first_row += plain;
            piece.rows = v_dim;
            piece.transpose = false;
            values.pieces.push_back(piece);
        }
        plans.push_back(std::move(keys));
        plans.push_back(std::move(values));
        matrix(from_.names.o, to_.names.o, hidden, heads * v_dim);
    }

    void ffn(Name gate, Name to_gate, Name up, Name to_up, Name down, Name to_down, std::uint64_t ffn) {
        if (!from_.names.gate_up.empty()) {
            matrix(from_.names.gate_up, to_.names.gate_up, 2 * ffn, config_.hidden);
        } else {
            matrix(gate, to_gate, ffn, config_.hidden);
            matrix(up, to_up, ffn, config_.hidden);
        }
        matrix(down, to_down, config_.hidden, ffn);
    }

    // Each matrix of all experts is one tensor in a GGUF.
    void stacked(Name from, Name to, std::uint64_t rows, std::uint64_t cols, std::uint64_t count) {
        TensorPlan plan{to_prefix_ + std::string(to), {count, rows, cols}, {}, 0, {}, true};
        for (std::uint64_t expert = 0; expert < count; ++expert) {
            Piece piece;
            piece.source = from_prefix_ + fmt::format(fmt::runtime(from), expert);
            piece.rows = rows;
            piece.cols = cols;
            plan.pieces.push_back(std::move(piece));
        }
        plans.push_back(std::move(plan));
    }

    void experts(const model::MoeConfig& moe) {
        const model::ExpertNames &from = *from_.experts, &to = *to_.experts;
        const std::uint64_t hidden = config_.hidden;
        add(from.router, to.router, moe.n_experts, hidden);  // small, and what it chooses is all or nothing: stays f32
        if (moe.selection_bias) vector(from.selection_bias, to.selection_bias, moe.n_experts);
        stacked(from.gate, to.stacked_gate, moe.expert_ffn, hidden, moe.n_experts);
        stacked(from.up, to.stacked_up, moe.expert_ffn, hidden, moe.n_experts);
        stacked(from.down, to.stacked_down, hidden, moe.expert_ffn, moe.n_experts);
        if (moe.n_shared == 0) return;
        ffn(from.shared_gate, to.shared_gate, from.shared_up, to.shared_up, from.shared_down, to.shared_down,
            std::uint64_t{moe.n_shared} * moe.expert_ffn);
    }

    model::Decoder from_, to_;
    const model::Config& config_;
    std::string from_prefix_, to_prefix_;
};

// Rows of a tensor of the input that are somewhere in the output.
struct Segment {
    std::uint64_t first_row = 0, rows = 0, cols = 0;  // in the input
    Piece back;                                       // where they are in the output
    const TensorPlan* plan = nullptr;
};

Result<TensorPlan> joined(const std::string& name, std::vector<Segment> segments) {
    std::sort(segments.begin(), segments.end(),
              [](const Segment& a, const Segment& b) { return a.first_row < b.first_row; });
    segments.erase(
        std::unique(segments.begin(), segments.end(),
                    [](const Segment& a, const Segment& b) { return a.first_row == b.first_row && a.rows == b.rows; }),
        segments.end());
    TensorPlan whole{name, {}, {}, -segments[0].plan->add, {}, segments[0].plan->quantizable};
    std::uint64_t rows = 0;
    for (Segment& segment : segments) {
        if (segment.first_row != rows) {
            return fail(Errc::internal, "conversion: rows {} and on of tensor {} have no place, or two", rows, name);
        }
        rows += segment.rows;
        whole.pieces.push_back(std::move(segment.back));
    }
    const bool vector = segments[0].plan->shape.size() == 1;
    whole.shape = vector ? std::vector{rows * segments[0].cols} : std::vector{rows, segments[0].cols};
    return whole;
}

RowOrder inverse(RowOrder order) {
    switch (order) {
        case RowOrder::interleave:
            return RowOrder::deinterleave;
        case RowOrder::deinterleave:
            return RowOrder::interleave;
        case RowOrder::as_is:
            break;
    }
    return RowOrder::as_is;
}

}  // namespace

TensorPlan renamed(std::string name, std::string source, std::uint64_t rows, std::uint64_t cols) {
    TensorPlan plan;
    plan.name = std::move(name);
    plan.shape = rows == 0 ? std::vector{cols} : std::vector{rows, cols};
    Piece piece;
    piece.source = std::move(source);
    piece.rows = rows == 0 ? 1 : rows;
    piece.cols = cols;
    plan.pieces.push_back(std::move(piece));
    return plan;
}

std::vector<TensorPlan> decoder_tensors(const model::Config& config, const model::Family& family, bool interleaved) {
    Mapper mapper(config, family);
    mapper.map(interleaved);
    return std::move(mapper.plans);
}

Result<std::vector<TensorPlan>> inverted(const std::vector<TensorPlan>& plans) {
    std::map<std::string, std::vector<Segment>> by_source;
    std::vector<std::string> order;
    for (const TensorPlan& plan : plans) {
        std::uint64_t row = 0;  // of the output
        for (const Piece& piece : plan.pieces) {
            const std::uint64_t rows = piece.transpose ? piece.cols : piece.rows;  // in the output
            Segment segment{piece.first_row, piece.rows, piece.cols, piece, &plan};
            segment.back.source = plan.name;
            segment.back.first_row = row;
            segment.back.rows = rows;
            segment.back.cols = piece.transpose ? piece.rows : piece.cols;
            segment.back.order = inverse(piece.order);
            row += rows;
            auto [place, fresh] = by_source.try_emplace(piece.source);
            if (fresh) order.push_back(piece.source);
            place->second.push_back(std::move(segment));
        }
    }
    std::vector<TensorPlan> out;
    for (const std::string& name : order) {
        HETERO_TRY(TensorPlan whole, joined(name, std::move(by_source[name])));
        out.push_back(std::move(whole));
    }
    return out;
}

}  // namespace hetero::convert
