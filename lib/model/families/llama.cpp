// Llama (https://arxiv.org/abs/2302.13971, GQA as in https://arxiv.org/abs/2307.09288): pre-norm RMSNorm, RoPE,
// grouped-query attention, SiLU-gated FFN, no biases. Llama 2 and 3, SmolLM, TinyLlama and others are of this family,
// and in GGUF mistral is.
#include "model/families/shared.h"

namespace hetero::model {
namespace {

Result<Config> config_from_gguf(Keys& keys) {
    // The converter reorders the rows of Q and K so that pairs lie side by side.
    HETERO_TRY(Config config,
               read_gguf(keys, {.arch = "llama", .pairing = kernels::RopePairing::interleaved, .yarn = true}));
    HETERO_CHECK(read_llama_window(keys, config));
    HETERO_CHECK(keys.only_flag("llama.use_parallel_residual", false));
    HETERO_CHECK(keys.refuse_unread("llama."));
    return config;
}

Result<Config> config_from_folder(Keys& keys) {
    HETERO_TRY(Config config, read_folder(keys, {.class_name = "LlamaForCausalLM", .model_type = "llama"}));
    HETERO_CHECK(read_rope(keys, config.rope, {.yarn_context = config.context_length}));
    HETERO_CHECK(keys.only_text("hidden_act", "silu"));
    HETERO_CHECK(keys.only_flag("attention_bias", false));
    HETERO_CHECK(keys.only_flag("mlp_bias", false));
    HETERO_CHECK(keys.only_flag("rope_interleaved", false));
    HETERO_CHECK(keys.only_number("partial_rotary_factor", 1.0));
    HETERO_CHECK(keys.only_number("rope_parameters.partial_rotary_factor", 1.0));
    keys.harmless({"pretraining_tp", "is_llama_config"});  // pretraining_tp slices the same products
    HETERO_CHECK(keys.refuse_unread(""));
    return config;
}

Result<Config> read_config(Keys& keys, Container container) {
    HETERO_TRY(Config config, container == Container::gguf ? config_from_gguf(keys) : config_from_folder(keys));
    config.arch = "llama";
    HETERO_CHECK(check_heads(keys.file(), config));
    return config;
}

Decoder decoder(Container container) { return {container == Container::gguf ? gguf_names : folder_names}; }

}  // namespace

extern const Family llama_family{"llama",      "llama",  "llama",
                                 &read_config, &decoder, [](Keys& keys) { return !has_llama_experts(keys); }};

}  // namespace hetero::model
