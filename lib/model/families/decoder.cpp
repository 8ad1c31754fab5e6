// The decoder that most families are: RMSNorm, grouped-query attention with RoPE, gated FFN.
#include <cmath>

#include "model/families/shared.h"

namespace hetero::model {

const DecoderNames gguf_names{.embedding = "token_embd.weight",
                              .final_norm = "output_norm.weight",
                              .head = "output.weight",
                              .layer = "blk.{}.",
                              .attn_norm = "attn_norm.weight",
                              .q = "attn_q.weight",
                              .k = "attn_k.weight",
                              .v = "attn_v.weight",
                              .o = "attn_output.weight",
                              .ffn_norm = "ffn_norm.weight",
                              .gate = "ffn_gate.weight",
                              .up = "ffn_up.weight",
                              .down = "ffn_down.weight"};

const DecoderNames folder_names{.embedding = "model.embed_tokens.weight",
                                .final_norm = "model.norm.weight",
                                .head = "lm_head.weight",
                                .layer = "model.layers.{}.",
                                .attn_norm = "input_layernorm.weight",
                                .q = "self_attn.q_proj.weight",
                                .k = "self_attn.k_proj.weight",
                                .v = "self_attn.v_proj.weight",
                                .o = "self_attn.o_proj.weight",
                                .ffn_norm = "post_attention_layernorm.weight",
                                .gate = "mlp.gate_proj.weight",
                                .up = "mlp.up_proj.weight",
                                .down = "mlp.down_proj.weight"};

namespace {

// Takes the tensors of one layer, or of the whole model, by their names in the family.
class Taker {
public:
    Taker(const Config& config, WeightReader& weights, const Decoder& decoder)
        : config_(config), weights_(weights), names_(decoder.names), offset_(decoder.norm_offset) {}
    void enter(std::uint32_t layer) { prefix_ = fmt::format(fmt::runtime(names_.layer), layer); }

    Result<Norm> norm(std::string_view name, std::uint32_t size) const {
        Norm norm;
        norm.eps = config_.norm_eps;
        HETERO_TRY(norm.weight, weights_.vector(prefix_ + std::string(name), size));
        if (offset_ != 0) {
            for (float& weight : norm.weight.values) weight += offset_;
        }
        return norm;
    }
    Result<std::optional<Norm>> norm_if(std::string_view name, std::uint32_t size) const {
        if (name.empty()) return std::nullopt;
        HETERO_TRY(Norm one, norm(name, size));
        return std::optional<Norm>(std::move(one));
    }
    Result<Matrix> matrix(std::string_view name, std::uint64_t rows, std::uint64_t cols,
                          std::string_view bias = {}) const {
        const std::string full = prefix_ + std::string(name);
        if (bias.empty()) return weights_.matrix(full, rows, cols);
        return weights_.matrix(full, prefix_ + std::string(bias), rows, cols);
    }

private:
    const Config& config_;
    WeightReader& weights_;
    const DecoderNames& names_;
    float offset_;
    std::string prefix_;
};

Status take_qkv(const Config& config, const DecoderNames& names, const Taker& take, Qkv& qkv) {
    const std::uint32_t q_rows = config.n_heads * config.head_dim, kv_rows = config.n_kv_heads * config.head_dim;
    if (names.qkv.empty()) {
        HETERO_TRY(qkv.q, take.matrix(names.q, q_rows, config.hidden, names.q_bias));
        HETERO_TRY(qkv.k, take.matrix(names.k, kv_rows, config.hidden, names.k_bias));
        HETERO_TRY(qkv.v, take.matrix(names.v, kv_rows, config.hidden, names.v_bias));
    } else {
        HETERO_TRY(const Matrix fused, take.matrix(names.qkv, q_rows + 2 * kv_rows, config.hidden));
        qkv.q = row_view(fused, 0, q_rows);
        qkv.k = row_view(fused, q_rows, kv_rows);
        qkv.v = row_view(fused, q_rows + kv_rows, kv_rows);
    }
    HETERO_TRY(qkv.q_norm, take.norm_if(names.q_norm, config.head_dim));
    HETERO_TRY(qkv.k_norm, take.norm_if(names.k_norm, config.head_dim));
    return {};
}

Status take_ffn(const Config& config, const DecoderNames& names, const Taker& take, FfnAdd& ffn) {
    if (names.gate_up.empty()) {
        HETERO_TRY(ffn.gate, take.matrix(names.gate, config.ffn, config.hidden));
        HETERO_TRY(ffn.up, take.matrix(names.up, config.ffn, config.hidden));
    } else {
        HETERO_TRY(const Matrix fused, take.matrix(names.gate_up, 2 * std::uint64_t{config.ffn}, config.hidden));
        ffn.gate = row_view(fused, 0, config.ffn);
        ffn.up = row_view(fused, config.ffn, config.ffn);
    }
    HETERO_TRY(ffn.down, take.matrix(names.down, config.hidden, config.ffn));
    HETERO_TRY(ffn.norm, take.norm_if(names.ffn_post_norm, config.hidden));
    ffn.activation = config.activation;
    return {};
}

}  // namespace

float attention_scale(const Config& config) {
    return config.attention_scale != 0 ? config.attention_scale : 1 / std::sqrt(static_cast<float>(config.head_dim));
}

Status complete_from_gguf(Config& config, WeightReader& weights) {
    if (config.vocab_size == 0) {
        HETERO_TRY(config.vocab_size, weights.rows_of(std::string(gguf_names.embedding), limits::vocab));
    }
    config.tied_embeddings = !weights.has(gguf_names.head);
    if (weights.has("rope_freqs.weight")) {
        HETERO_TRY(Vector divisors, weights.vector("rope_freqs.weight", config.rope.rotary_dim / 2));
        for (const float divisor : divisors.values) {
            if (!(divisor > 0)) {
                return fail(Errc::bad_input, "{}: tensor rope_freqs.weight holds {}; frequencies are divided by it",
                            weights.path(), divisor);
            }
        }
        config.rope.frequency_divisors = std::move(divisors.values);
    }
    return {};
}

Result<Program> build_decoder(Config& config, WeightReader& weights, Container container, const Decoder& decoder) {
    if (container == Container::gguf) HETERO_CHECK(complete_from_gguf(config, weights));
    const DecoderNames& names = decoder.names;
    const std::uint32_t q_width = config.n_heads * config.head_dim;

    Program program;
    program.ropes = {config.rope};
    if (config.sliding_rope) program.ropes.push_back(*config.sliding_rope);
    program.kv.assign(config.n_layers, KvLayout{config.n_kv_heads, config.head_dim, config.head_dim});
    const Register x = program.add_register("residual", config.hidden);
    const Register h = program.add_register("normed", config.hidden);
    const Register q = program.add_register("query", q_width);
    const Register a = program.add_register("attended", q_width);

    HETERO_TRY(Matrix embedding, weights.matrix(std::string(names.embedding), config.vocab_size, config.hidden));
    program.ops.emplace_back(Embed{embedding, x, config.embedding_scale});
    Taker take(config, weights, decoder);
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
        take.enter(layer);
        const bool sliding = !config.sliding.empty() && config.sliding[layer];
        HETERO_TRY(Norm attn_norm, take.norm(names.attn_norm, config.hidden));
        program.ops.emplace_back(Normalize{std::move(attn_norm), x, h});
        Qkv qkv;
        qkv.layer = layer;
        qkv.n_heads = config.n_heads;
        qkv.rope = sliding && config.sliding_rope ? 1 : 0;
        qkv.in = h;
        qkv.q_out = q;
        HETERO_CHECK(take_qkv(config, names, take, qkv));
        program.ops.emplace_back(std::move(qkv));
        program.ops.emplace_back(Attention{layer, config.n_heads, attention_scale(config), q, a,
                                           sliding ? config.window : 0, config.attention_softcap});
        ProjectAdd project{{}, a, x, {}};
        HETERO_TRY(project.weight, take.matrix(names.o, config.hidden, q_width));
        HETERO_TRY(project.norm, take.norm_if(names.attn_post_norm, config.hidden));
        program.ops.emplace_back(std::move(project));
        HETERO_TRY(Norm ffn_norm, take.norm(names.ffn_norm, config.hidden));
        program.ops.emplace_back(Normalize{std::move(ffn_norm), x, h});
        FfnAdd ffn;
        ffn.in = h;
        ffn.out = x;
        HETERO_CHECK(take_ffn(config, names, take, ffn));
        program.ops.emplace_back(std::move(ffn));
    }
    Head head;
    head.in = x;
    head.softcap = config.logit_softcap;
    HETERO_TRY(head.norm, Taker(config, weights, decoder).norm(names.final_norm, config.hidden));
    if (config.tied_embeddings) {
        head.weight = std::move(embedding);
    } else {
        HETERO_TRY(head.weight, weights.matrix(std::string(names.head), config.vocab_size, config.hidden));
    }
    program.ops.emplace_back(std::move(head));
    // Checkpoints may carry what is derived (RoPE frequencies) or, tied, the head a second time.
    std::vector<std::string_view> harmless = {"rotary_emb.inv_freq"};
    if (config.tied_embeddings) harmless.push_back(names.head);
    HETERO_CHECK(weights.refuse_unused(harmless));
    return program;
}

}  // namespace hetero::model
