// Qwen3 (https://arxiv.org/abs/2505.09388): a Llama with RMSNorm over each head of Q and K before RoPE, its own head
// size, and optionally a sliding window in the upper layers.
#include "model/families/shared.h"

namespace hetero::model {
namespace {

Result<Config> config_from_gguf(Keys& keys) {
    HETERO_TRY(Config config, read_gguf(keys, {.arch = "qwen3", .yarn = true}));
    HETERO_CHECK(keys.refuse_unread("qwen3."));
    return config;
}

Result<Config> config_from_folder(Keys& keys) {
    HETERO_TRY(Config config,
               read_folder(
                   keys, {.class_name = "Qwen3ForCausalLM", .model_type = "qwen3", .head_dim = 128, .n_kv_heads = 32}));
    HETERO_CHECK(read_rope(keys, config.rope, {.yarn_context = config.context_length}));
    HETERO_CHECK(keys.only_text("hidden_act", "silu"));
    HETERO_CHECK(keys.only_flag("attention_bias", false));
    HETERO_CHECK(read_upper_sliding_layers(keys, config));
    HETERO_CHECK(keys.refuse_unread(""));
    return config;
}

Result<Config> read_config(Keys& keys, Container container) {
    HETERO_TRY(Config config, container == Container::gguf ? config_from_gguf(keys) : config_from_folder(keys));
    config.arch = "qwen3";
    HETERO_CHECK(check_heads(keys.file(), config));
    return config;
}

Decoder decoder(Container container) {
    const bool gguf = container == Container::gguf;
    DecoderNames names = gguf ? gguf_names : folder_names;
    name_head_norms(names, container);
    return {names};
}

}  // namespace

extern const Family qwen3_family{"qwen3", "qwen3", "qwen3", &read_config, &decoder};

}  // namespace hetero::model
