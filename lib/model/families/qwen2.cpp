// Qwen2 and Qwen2.5 (https://arxiv.org/abs/2407.10671): a Llama with biases on Q, K and V, and optionally a sliding
// window in the upper layers.
#include "model/families/shared.h"

namespace hetero::model {
namespace {

Result<Config> config_from_gguf(Keys& keys) {
    HETERO_TRY(Config config, read_gguf(keys, {.arch = "qwen2", .yarn = true}));
    HETERO_CHECK(keys.refuse_unread("qwen2."));
    return config;
}

Result<Config> config_from_folder(Keys& keys) {
    HETERO_TRY(Config config,
               read_folder(keys, {.class_name = "Qwen2ForCausalLM", .model_type = "qwen2", .n_kv_heads = 32}));
    HETERO_CHECK(read_rope(keys, config.rope, {.yarn_context = config.context_length}));
    HETERO_CHECK(keys.only_text("hidden_act", "silu"));
    HETERO_CHECK(read_upper_sliding_layers(keys, config));
    HETERO_CHECK(keys.refuse_unread(""));
    return config;
}

Result<Config> read_config(Keys& keys, Container container) {
    HETERO_TRY(Config config, container == Container::gguf ? config_from_gguf(keys) : config_from_folder(keys));
    config.arch = "qwen2";
    HETERO_CHECK(check_heads(keys.file(), config));
    return config;
}

Decoder decoder(Container container) {
    const bool gguf = container == Container::gguf;
    DecoderNames names = gguf ? gguf_names : folder_names;
    names.q_bias = gguf ? "attn_q.bias" : "self_attn.q_proj.bias";
    names.k_bias = gguf ? "attn_k.bias" : "self_attn.k_proj.bias";
    names.v_bias = gguf ? "attn_v.bias" : "self_attn.v_proj.bias";
    return {names};
}

}  // namespace

extern const Family qwen2_family{"qwen2", "qwen2", "qwen2", &read_config, &decoder};

}  // namespace hetero::model
