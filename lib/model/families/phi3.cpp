// Phi-3 and Phi-4-mini (https://arxiv.org/abs/2404.14219): a Llama with Q, K, V fused into one matrix, gate and up into
// another, RoPE over a part of each head, and optionally a sliding window. LongRoPE is not implemented.
#include "model/families/shared.h"

namespace hetero::model {
namespace {

Result<Config> config_from_gguf(Keys& keys) {
    HETERO_TRY(Config config, read_gguf(keys, {.arch = "phi3"}));
    HETERO_TRY(const auto window, keys.integer("phi3.attention.sliding_window", 0, limits::context));
    config.window = static_cast<std::uint32_t>(window.value_or(0));
    config.sliding.assign(config.n_layers, config.window != 0);
    HETERO_CHECK(keys.refuse_unread("phi3."));
    return config;
}

Result<Config> config_from_folder(Keys& keys) {
    HETERO_TRY(Config config,
               read_folder(keys, {.class_name = "Phi3ForCausalLM", .model_type = "phi3", .norm_eps = 1e-5}));
    HETERO_CHECK(read_rope(keys, config.rope));
    HETERO_CHECK(
        read_partial_rotary(keys, config, {"partial_rotary_factor", "rope_parameters.partial_rotary_factor"}, 1.0));
    HETERO_CHECK(keys.only_text("hidden_act", "silu"));
    HETERO_CHECK(keys.only_flag("attention_bias", false));
    HETERO_TRY(config.window, read_window(keys, 0));
    HETERO_CHECK(read_sliding_layers(keys, config, [](std::uint32_t) { return true; }));
    // The original context matters to LongRoPE alone.
    keys.harmless({"original_max_position_embeddings", "embd_pdrop", "resid_pdrop"});
    HETERO_CHECK(keys.refuse_unread(""));
    return config;
}

Result<Config> read_config(Keys& keys, Container container) {
    HETERO_TRY(Config config, container == Container::gguf ? config_from_gguf(keys) : config_from_folder(keys));
    config.arch = "phi3";
    HETERO_CHECK(check_heads(keys.file(), config));
    return config;
}

Decoder decoder(Container container) {
    const bool gguf = container == Container::gguf;
    DecoderNames names = gguf ? gguf_names : folder_names;
    names.qkv = gguf ? "attn_qkv.weight" : "self_attn.qkv_proj.weight";
    names.gate_up = gguf ? "ffn_up.weight" : "mlp.gate_up_proj.weight";
    return {names};
}

}  // namespace

extern const Family phi3_family{"phi3", "phi3", "phi3", &read_config, &decoder};

}  // namespace hetero::model
