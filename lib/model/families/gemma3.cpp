// Gemma 3, text (https://arxiv.org/abs/2503.19786): scaled embeddings, norms before and after attention and FFN and
// over each head of Q and K, all with weights (1 + w), GELU-gated FFN; local layers with a sliding window and their own
// RoPE base, and every sixth layer global.
#include <cmath>

#include "model/families/shared.h"

namespace hetero::model {
namespace {

constexpr double max_number = 1e6;

void set_sliding_layers(Config& config, std::uint32_t pattern) {
    config.sliding.resize(config.n_layers);
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) config.sliding[layer] = (layer + 1) % pattern != 0;
}

Result<Config> config_from_gguf(Keys& keys) {
    HETERO_TRY(Config config, read_gguf(keys, {.arch = "gemma3", .theta = 1e6}));
    HETERO_TRY(config.window, keys.count("gemma3.attention.sliding_window", limits::context));
    HETERO_TRY(const std::uint32_t pattern, keys.count("gemma3.attention.sliding_window_pattern", limits::layers, 6));
    set_sliding_layers(config, pattern);
    RopeConfig local;
    local.rotary_dim = config.rope.rotary_dim;
    HETERO_TRY(const auto local_theta, keys.number("gemma3.rope.freq_base_swa", 1, 1e12));
    local.theta = static_cast<float>(local_theta.value_or(10000));
    config.sliding_rope = local;
    HETERO_TRY(const auto logit_cap, keys.number("gemma3.final_logit_softcapping", 0, max_number));
    config.logit_softcap = static_cast<float>(logit_cap.value_or(0));
    HETERO_TRY(const auto scale, keys.number("gemma3.attention.scale", 1e-6, max_number));
    config.attention_scale = static_cast<float>(scale.value_or(0));
    // Files without the key: of the published sizes only the 27B (62 layers) does not scale by the head size.
    if (!scale && config.n_layers == 62) {
        config.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.hidden) / config.n_heads));
    }
    HETERO_CHECK(keys.refuse_unread("gemma3."));
    return config;
}

Result<Config> config_from_folder(Keys& keys) {
    HETERO_TRY(Config config, read_folder(keys, {.class_name = "Gemma3ForCausalLM",
                                                 .model_type = "gemma3_text",
                                                 .head_dim = 256,
                                                 .n_kv_heads = 4,
                                                 .tied_embeddings = true}));
    HETERO_CHECK(read_rope(keys, config.rope,
                           {.theta_keys = {"rope_theta", "rope_parameters.full_attention.rope_theta"},
                            .theta = 1e6,
                            .section = "rope_parameters.full_attention."}));
    RopeConfig local;
    local.rotary_dim = config.head_dim;
    HETERO_CHECK(read_rope(keys, local,
                           {.theta_keys = {"rope_local_base_freq", "rope_parameters.sliding_attention.rope_theta"},
                            .section = "rope_parameters.sliding_attention.",
                            .old_section = ""}));
    config.sliding_rope = local;
    HETERO_CHECK(keys.only_text("hidden_activation", "gelu_pytorch_tanh"));
    keys.harmless({"hidden_act"});  // the model asks for hidden_activation
    HETERO_CHECK(keys.only_flag("attention_bias", false));
    HETERO_CHECK(keys.only_flag("use_bidirectional_attention", false));
    HETERO_TRY(const auto attention_cap, keys.number("attn_logit_softcapping", 1e-6, max_number));
    HETERO_TRY(const auto logit_cap, keys.number("final_logit_softcapping", 1e-6, max_number));
    config.attention_softcap = static_cast<float>(attention_cap.value_or(0));
    config.logit_softcap = static_cast<float>(logit_cap.value_or(0));
    HETERO_TRY(const auto scalar, keys.number("query_pre_attn_scalar", 1e-6, max_number));
    config.attention_scale = static_cast<float>(1 / std::sqrt(scalar.value_or(256)));
    HETERO_TRY(config.window, read_window(keys, 4096));
    HETERO_TRY(const auto pattern,
               agreed_number(keys, {"sliding_window_pattern", "_sliding_window_pattern"}, 1, limits::layers));
    const auto period = static_cast<std::uint32_t>(pattern.value_or(6));
    HETERO_CHECK(
        read_sliding_layers(keys, config, [period](std::uint32_t layer) { return (layer + 1) % period != 0; }));
    HETERO_CHECK(keys.refuse_unread(""));
    return config;
}

Result<Config> read_config(Keys& keys, Container container) {
    HETERO_TRY(Config config, container == Container::gguf ? config_from_gguf(keys) : config_from_folder(keys));
    config.arch = "gemma3_text";
    config.activation = Activation::gelu_tanh;
    config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
    HETERO_CHECK(check_heads(keys.file(), config));
    return config;
}

Decoder decoder(Container container) {
    const bool gguf = container == Container::gguf;
    DecoderNames names = gguf ? gguf_names : folder_names;
    name_post_norms(names, container);
    name_head_norms(names, container);
    return {names, gguf ? 0.0F : 1.0F};  // a GGUF has the 1 added already
}

}  // namespace

extern const Family gemma3_family{"gemma3_text", "gemma3", "gemma3_text", &read_config, &decoder};

}  // namespace hetero::model
