#include <algorithm>

#include "convert/family.h"

namespace hetero::convert {
namespace {

// Every how many layers one sees all tokens; the published 6 where that is so.
Result<std::uint32_t> pattern_of(const model::Config& config) {
    std::vector<std::uint32_t> periods{6};
    for (std::uint32_t period = 1; period <= config.n_layers + 1; ++period) periods.push_back(period);
    for (const std::uint32_t period : periods) {
        bool fits = true;
        for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
            fits = fits && config.sliding[layer] == ((layer + 1) % period != 0);
        }
        if (fits) return period;
    }
    return fail(Errc::bad_input,
                "layer_types repeat in no way that a GGUF of gemma3 can say (every n-th layer sees all)");
}

Status to_gguf(const model::Config& config, ArchKeys& keys) {
    if (config.attention_softcap != 0) {
        return fail(Errc::bad_input, "attn_logit_softcapping is {}: a GGUF of gemma3 cannot say so",
                    config.attention_softcap);
    }
    const model::RopeConfig& local = *config.sliding_rope;
    if (local.scaling != model::RopeScalingKind::none || local.rotary_dim != config.rope.rotary_dim) {
        return fail(Errc::bad_input, "RoPE of the sliding layers is scaled: a GGUF of gemma3 cannot say so");
    }
    HETERO_TRY(const std::uint32_t pattern, pattern_of(config));
    keys.count("attention.sliding_window", std::max(config.window, 1U));
    keys.count("attention.sliding_window_pattern", pattern);
    keys.number("rope.freq_base_swa", local.theta);
    if (config.logit_softcap != 0) keys.number("final_logit_softcapping", config.logit_softcap);
    describe_attention_scale(config, 62, keys);
    if (pattern != 6 || local.theta != 10000) {
        keys.warn(
            fmt::format("releases of llama.cpp that do not read attention.sliding_window_pattern and "
                        "rope.freq_base_swa take 6 and 10000 for them instead of {} and {}",
                        pattern, local.theta));
    }
    return {};
}

Result<Json> to_config(const model::Config& config) {
    HETERO_TRY(Json json, describe_config(config, {.class_name = "Gemma3ForCausalLM",
                                                   .model_type = "gemma3_text",
                                                   .activation_key = "hidden_activation",
                                                   .activation = "gelu_pytorch_tanh",
                                                   .head_dim = true}));
    json["attention_bias"] = false;
    json["attn_logit_softcapping"] = nullptr;
    json["final_logit_softcapping"] = config.logit_softcap == 0 ? Json() : Json(shortest(config.logit_softcap));
    json["query_pre_attn_scalar"] = attention_scalar(config);
    json["rope_local_base_freq"] = config.sliding_rope->theta;
    json["sliding_window"] = config.window;
    json["layer_types"] = layer_types(config);
    return json;
}

}  // namespace

extern const Conversion gemma3_conversion{.arch = "gemma3_text", .to_gguf = &to_gguf, .to_config = &to_config};

}  // namespace hetero::convert
