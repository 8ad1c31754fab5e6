// The decoder that most families are: RMSNorm, grouped-query attention with RoPE, gated FFN.
#include <cmath>

#include "model/families/decoder_parts.h"

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

KvLayout kv_layout(const Config& config) {
    if (!config.latent) return {config.n_kv_heads, config.head_dim, config.head_dim};
    return {1, config.latent->kv_rank, config.latent->rope_dim, KvLayout::Kind::latent};
}

// Layers with experts are those that have a router.
void find_expert_layers(Config& config, const WeightReader& weights, const Decoder& decoder) {
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const std::string prefix = fmt::format(fmt::runtime(decoder.names.layer), layer);
        config.moe->layers.push_back(weights.has(prefix + std::string(decoder.experts->router)));
    }
}

}  // namespace

void name_post_norms(DecoderNames& names, Container container) {
    const bool gguf = container == Container::gguf;
    names.attn_post_norm = gguf ? "post_attention_norm.weight" : "post_attention_layernorm.weight";
    names.ffn_norm = gguf ? "ffn_norm.weight" : "pre_feedforward_layernorm.weight";
    names.ffn_post_norm = gguf ? "post_ffw_norm.weight" : "post_feedforward_layernorm.weight";
}

void name_head_norms(DecoderNames& names, Container container) {
    const bool gguf = container == Container::gguf;
    names.q_norm = gguf ? "attn_q_norm.weight" : "self_attn.q_norm.weight";
    names.k_norm = gguf ? "attn_k_norm.weight" : "self_attn.k_norm.weight";
}

float attention_scale(const Config& config) {
    if (config.attention_scale != 0) return config.attention_scale;
    return static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim)));
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
        recognise_llama3(config.rope);
    }
    return {};
}

Result<Program> build_decoder(Config& config, WeightReader& weights, Container container, const Decoder& decoder) {
    if (container == Container::gguf) HETERO_CHECK(complete_from_gguf(config, weights));
    const DecoderNames& names = decoder.names;
    if (config.moe && config.moe->layers.empty()) find_expert_layers(config, weights, decoder);
    const std::uint32_t value_dim = config.latent ? config.latent->v_dim : config.head_dim;
    const std::uint32_t attended_width = config.n_heads * value_dim;

    Program program;
    program.ropes = {config.rope};
    if (config.sliding_rope) program.ropes.push_back(*config.sliding_rope);
    program.kv.assign(config.n_layers, kv_layout(config));
    const Register x = program.add_register("residual", config.hidden);
    const Register h = program.add_register("normed", config.hidden);
    const Register a = program.add_register("attended", attended_width);
    Register q = 0;
    LatentRegisters latent_registers;
    if (config.latent) {
        latent_registers = add_latent_registers(config, program);
    } else {
        q = program.add_register("query", config.n_heads * config.head_dim);
    }

    HETERO_TRY(Matrix embedding, weights.matrix(std::string(names.embedding), config.vocab_size, config.hidden));
    program.ops.emplace_back(Embed{embedding, x, config.embedding_scale});
    Taker take(config, weights, decoder);
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
        take.enter(layer);
        const bool sliding = !config.sliding.empty() && config.sliding[layer];
        HETERO_TRY(Norm attn_norm, take.norm(names.attn_norm, config.hidden));
        program.ops.emplace_back(Normalize{std::move(attn_norm), x, h});
        if (config.latent) {
            HETERO_CHECK(add_latent_attention(config, *decoder.latent, take, latent_registers, layer, h, a, program));
        } else {
            program.kv[layer].window = sliding ? config.window : 0;
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
        }
        ProjectAdd project{{}, a, x, {}};
        HETERO_TRY(project.weight, take.matrix(names.o, config.hidden, attended_width));
        HETERO_TRY(project.norm, take.norm_if(names.attn_post_norm, config.hidden));
        program.ops.emplace_back(std::move(project));
        HETERO_TRY(Norm ffn_norm, take.norm(names.ffn_norm, config.hidden));
        program.ops.emplace_back(Normalize{std::move(ffn_norm), x, h});
        if (config.moe && config.moe->layers[layer]) {
            HETERO_CHECK(add_experts(config, *decoder.experts, take, h, x, program));
            continue;
        }
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
    HETERO_CHECK(weights.refuse_unused(harmless, decoder.elsewhere));
    return program;
}

}  // namespace hetero::model
