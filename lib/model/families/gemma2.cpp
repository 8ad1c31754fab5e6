// Gemma 2 (https://arxiv.org/abs/2408.00118): scaled embeddings, norms before and after attention and FFN with weights
// (1 + w), GELU-gated FFN, soft caps on attention scores and logits, a sliding window in every other layer.
#include <cmath>

#include "model/families/shared.h"

namespace hetero::model {
namespace {

constexpr double max_number = 1e6;

bool usually_slides(std::uint32_t layer) { return layer % 2 == 0; }

Result<Config> config_from_gguf(Keys& keys) {
    HETERO_TRY(Config config, read_gguf(keys, {.arch = "gemma2"}));
    HETERO_TRY(const auto attention_cap, keys.number("gemma2.attn_logit_softcapping", 0, max_number));
    HETERO_TRY(const auto logit_cap, keys.number("gemma2.final_logit_softcapping", 0, max_number));
    config.attention_softcap = static_cast<float>(attention_cap.value_or(50));
    config.logit_softcap = static_cast<float>(logit_cap.value_or(30));
    HETERO_TRY(config.window, keys.count("gemma2.attention.sliding_window", limits::context, 4096));
    config.sliding.resize(config.n_layers);
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) config.sliding[layer] = usually_slides(layer);
    HETERO_TRY(const auto scale, keys.number("gemma2.attention.scale", 1e-6, max_number));
    config.attention_scale = static_cast<float>(scale.value_or(0));
    // Files without the key: of the published sizes only the 27B (46 layers) does not scale by the head size.
    if (!scale && config.n_layers == 46) {
        config.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.hidden) / config.n_heads));
    }
    HETERO_CHECK(keys.refuse_unread("gemma2."));
    return config;
}

Result<Config> config_from_folder(Keys& keys) {
    HETERO_TRY(Config config, read_folder(keys, {.class_name = "Gemma2ForCausalLM",
                                                 .model_type = "gemma2",
                                                 .head_dim = 256,
                                                 .n_kv_heads = 4,
                                                 .tied_embeddings = true}));
    HETERO_CHECK(read_rope(keys, config.rope));
    HETERO_CHECK(keys.only_text("hidden_activation", "gelu_pytorch_tanh"));
    keys.harmless({"hidden_act"});  // the model asks for hidden_activation
    HETERO_CHECK(keys.only_flag("attention_bias", false));
    HETERO_CHECK(keys.only_flag("use_bidirectional_attention", false));
    const auto cap = [&keys](std::string_view key, double fallback) -> Result<float> {
        const bool given = keys.has(key);
        HETERO_TRY(const auto value, keys.number(key, 1e-6, max_number));
        return static_cast<float>(value.value_or(given ? 0 : fallback));
    };
    HETERO_TRY(config.attention_softcap, cap("attn_logit_softcapping", 50));
    HETERO_TRY(config.logit_softcap, cap("final_logit_softcapping", 30));
    HETERO_TRY(const auto scalar, keys.number("query_pre_attn_scalar", 1e-6, max_number));
    config.attention_scale = static_cast<float>(1 / std::sqrt(scalar.value_or(256)));
    HETERO_TRY(config.window, read_window(keys, 4096));
    HETERO_CHECK(read_sliding_layers(keys, config, usually_slides));
    HETERO_CHECK(keys.refuse_unread(""));
    return config;
}

Result<Config> read_config(Keys& keys, Container container) {
    HETERO_TRY(Config config, container == Container::gguf ? config_from_gguf(keys) : config_from_folder(keys));
    config.arch = "gemma2";
    config.activation = Activation::gelu_tanh;
    config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
    HETERO_CHECK(check_heads(keys.file(), config));
    return config;
}

Decoder decoder(Container container) {
    const bool gguf = container == Container::gguf;
    DecoderNames names = gguf ? gguf_names : folder_names;
    name_post_norms(names, container);
    return {names, gguf ? 0.0F : 1.0F};  // a GGUF has the 1 added already
}

}  // namespace

extern const Family gemma2_family{"gemma2", "gemma2", "gemma2", &read_config, &decoder};

}  // namespace hetero::model
