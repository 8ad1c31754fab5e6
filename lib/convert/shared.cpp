#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "convert/family.h"

namespace hetero::convert {
namespace {

using model::RopeScalingKind;

Status describe_rope(const model::Config& config, const Conversion& conversion, ArchKeys& keys) {
    const model::RopeConfig& rope = config.rope;
    keys.count("rope.dimension_count", rope.rotary_dim);
    keys.number("rope.freq_base", rope.theta);
    switch (rope.scaling) {
        case RopeScalingKind::none:
            break;
        case RopeScalingKind::linear:
            keys.text("rope.scaling.type", "linear");
            keys.number("rope.scaling.factor", rope.factor);
            break;
        case RopeScalingKind::llama3:  // rope_freqs.weight has the rest of it
            if (!conversion.rope_divisors) {
                return fail(Errc::bad_input, "RoPE scaling \"llama3\" has no place in a GGUF of {}", conversion.arch);
            }
            keys.count("rope.scaling.original_context_length", rope.original_context);
            if (rope.low_freq_factor != 1 || rope.high_freq_factor != 4) {
                keys.warn(
                    fmt::format("a GGUF does not tell low_freq_factor {} and high_freq_factor {}, only what they "
                                "come to: states do not cross between it and the folder",
                                rope.low_freq_factor, rope.high_freq_factor));
            }
            break;
        case RopeScalingKind::yarn: {
            // Readers let attention grow with the factor alone; with latents, by attention_scale instead.
            const double growth = config.latent ? 1 : model::yarn_growth(rope.factor);
            if (static_cast<float>(rope.attention_factor) != static_cast<float>(growth)) {
                return fail(Errc::bad_input,
                            "YaRN scales Q and K by {}: a GGUF of {} cannot say another factor than {}",
                            rope.attention_factor, conversion.arch, growth);
            }
            if (!rope.whole_dims) {
                return fail(Errc::bad_input, "YaRN without truncation has no place in a GGUF");
            }
            keys.text("rope.scaling.type", "yarn");
            keys.number("rope.scaling.factor", rope.factor);
            keys.count("rope.scaling.original_context_length", rope.original_context);
            keys.number("rope.scaling.yarn_beta_fast", rope.beta_fast);
            keys.number("rope.scaling.yarn_beta_slow", rope.beta_slow);
            break;
        }
    }
    return {};
}

Result<Json> rope_scaling(const model::RopeConfig& rope) {
    if (!rope.frequency_divisors.empty()) {
        return fail(Errc::bad_input,
                    "rope_freqs.weight divides frequencies by values that are not Llama 3's, and no config.json says");
    }
    switch (rope.scaling) {
        case RopeScalingKind::none:
            break;
        case RopeScalingKind::linear:
            return Json{{"rope_type", "linear"}, {"factor", rope.factor}};
        case RopeScalingKind::llama3:
            return Json{{"rope_type", "llama3"},
                        {"factor", rope.factor},
                        {"low_freq_factor", rope.low_freq_factor},
                        {"high_freq_factor", rope.high_freq_factor},
                        {"original_max_position_embeddings", rope.original_context}};
        case RopeScalingKind::yarn: {
            Json json{{"rope_type", "yarn"},
                      {"factor", rope.factor},
                      {"original_max_position_embeddings", rope.original_context},
                      {"beta_fast", rope.beta_fast},
                      {"beta_slow", rope.beta_slow}};
            if (rope.attention_factor != model::yarn_growth(rope.factor))
                json["attention_factor"] = rope.attention_factor;
            return json;
        }
    }
    return Json();
}

}  // namespace

double shortest(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

Status describe_gguf(const model::Config& config, const Conversion& conversion, ArchKeys& keys) {
    keys.count("block_count", config.n_layers);
    keys.count("context_length", config.context_length);
    keys.count("embedding_length", config.hidden);
    keys.count("feed_forward_length", config.ffn);
    keys.count("vocab_size", config.vocab_size);
    keys.count("attention.head_count", config.n_heads);
    keys.count("attention.head_count_kv", config.n_kv_heads);
    if (config.latent) {  // as many as the cache has of each token; those of a head have names of their own
        const model::LatentConfig& latent = *config.latent;
        keys.count("attention.key_length", latent.kv_rank + latent.rope_dim);
        keys.count("attention.value_length", latent.kv_rank);
        keys.count("attention.key_length_mla", config.head_dim);
        keys.count("attention.value_length_mla", latent.v_dim);
    } else {
        keys.count("attention.key_length", config.head_dim);
        keys.count("attention.value_length", config.head_dim);
    }
    if (config.moe) {
        keys.count("expert_count", config.moe->n_experts);
        keys.count("expert_used_count", config.moe->rule.top_k);
    }
    keys.number(conversion.norm_eps_key, config.norm_eps);
    return describe_rope(config, conversion, keys);
}

Result<Json> describe_config(const model::Config& config, const ConfigKeys& keys) {
    Json json;
    json["architectures"] = {keys.class_name};
    json["model_type"] = keys.model_type;
    if (!config.name.empty()) json["_name_or_path"] = config.name;
    json[keys.activation_key] = keys.activation;
    json["hidden_size"] = config.hidden;
    json["intermediate_size"] = config.ffn;
    json["num_hidden_layers"] = config.n_layers;
    json["num_attention_heads"] = config.n_heads;
    json["num_key_value_heads"] = config.n_kv_heads;
    if (keys.head_dim) json["head_dim"] = config.head_dim;
    json["max_position_embeddings"] = config.context_length;
    json[keys.norm_eps] = shortest(config.norm_eps);
    json["rope_theta"] = config.rope.theta;
    HETERO_TRY(json["rope_scaling"], rope_scaling(config.rope));
    json["tie_word_embeddings"] = config.tied_embeddings;
    json["use_cache"] = true;
    json["vocab_size"] = config.vocab_size;
    return json;
}

bool any_slides(const model::Config& config) {
    return std::find(config.sliding.begin(), config.sliding.end(), true) != config.sliding.end();
}

Result<std::uint32_t> window_of_all(const model::Config& config) {
    if (!any_slides(config)) return 0;
    if (std::find(config.sliding.begin(), config.sliding.end(), false) != config.sliding.end()) {
        return fail(Errc::bad_input, "some layers see a window of {} tokens and others all: a GGUF of {} cannot say so",
                    config.window, config.arch);
    }
    return config.window;
}

Status describe_llama_window(const model::Config& config, ArchKeys& keys) {
    HETERO_TRY(const std::uint32_t window, window_of_all(config));
    if (window == 0) return {};
    keys.count("attention.sliding_window", window);
    keys.warn(fmt::format(
        "llama.cpp does not look at the window of {} tokens in a GGUF of llama: past it its answers are others",
        window));
    return {};
}

std::vector<std::string> layer_types(const model::Config& config) {
    std::vector<std::string> types(config.n_layers, "full_attention");
    for (std::size_t layer = 0; layer < config.sliding.size(); ++layer) {
        if (config.sliding[layer]) types[layer] = "sliding_attention";
    }
    return types;
}

Json attention_scalar(const model::Config& config) {
    const double scale = model::attention_scale(config);
    const double scalar = 1 / (scale * scale);
    // A whole number in all published files.
    if (const double whole = std::round(scalar);
        static_cast<float>(1 / std::sqrt(whole)) == model::attention_scale(config)) {
        return static_cast<std::int64_t>(whole);
    }
    return scalar;
}

void describe_attention_scale(const model::Config& config, std::uint32_t large_layers, ArchKeys& keys) {
    const float scale = model::attention_scale(config);
    const double dims = config.n_layers == large_layers ? static_cast<double>(config.hidden) / config.n_heads
                                                        : static_cast<double>(config.head_dim);
    const auto usual = static_cast<float>(1 / std::sqrt(dims));
    keys.number("attention.scale", scale);
    if (scale != usual) {
        keys.warn(
            fmt::format("llama.cpp does not read attention.scale {} and scales attention scores by {}", scale, usual));
    }
}

}  // namespace hetero::convert
