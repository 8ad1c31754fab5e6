#include "convert/family.h"

namespace hetero::convert {
namespace {

Status to_gguf(const model::Config& config, ArchKeys& keys) {
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
        if (config.sliding[layer] == (layer % 2 == 0)) continue;
        return fail(Errc::bad_input,
                    "layer {} is a {}: in a GGUF of gemma2 every other layer slides, beginning with the first", layer,
                    layer_types(config)[layer]);
    }
    keys.count("attention.sliding_window", config.window);
    keys.number("attn_logit_softcapping", config.attention_softcap);
    keys.number("final_logit_softcapping", config.logit_softcap);
    if (config.attention_softcap == 0 || config.logit_softcap == 0) {
        keys.warn("llama.cpp caps attention scores and logits of gemma2 always, by 0 too");
    }
    describe_attention_scale(config, 46, keys);
    return {};
}

Result<Json> to_config(const model::Config& config) {
    HETERO_TRY(Json json, describe_config(config, {.class_name = "Gemma2ForCausalLM",
                                                   .model_type = "gemma2",
                                                   .activation_key = "hidden_activation",
                                                   .activation = "gelu_pytorch_tanh",
                                                   .head_dim = true}));
    const auto cap = [](float value) { return value == 0 ? Json() : Json(shortest(value)); };
    json["attention_bias"] = false;
    json["attn_logit_softcapping"] = cap(config.attention_softcap);
    json["final_logit_softcapping"] = cap(config.logit_softcap);
    json["query_pre_attn_scalar"] = attention_scalar(config);
    json["sliding_window"] = config.window;
    json["layer_types"] = layer_types(config);
    return json;
}

}  // namespace

extern const Conversion gemma2_conversion{.arch = "gemma2", .to_gguf = &to_gguf, .to_config = &to_config};

}  // namespace hetero::convert
