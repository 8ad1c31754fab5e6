// DeepSeek-V2 and DeepSeek-V3, which are one architecture in GGUF.
#include <algorithm>
#include <cmath>

#include "convert/family.h"

namespace hetero::convert {
namespace {

using model::RoutingRule;

// mscale_all_dim, by which YaRN lets scores grow: what the configuration keeps is what it comes to. 0: none.
double all_dims(const model::Config& config) {
    if (config.rope.scaling != model::RopeScalingKind::yarn || config.attention_scale == 0) return 0;
    if (config.rope.factor <= 1) return 1;  // nothing grows
    const double growth = std::sqrt(config.attention_scale * std::sqrt(static_cast<double>(config.head_dim)));
    return std::round((growth - 1) / (0.1 * std::log(config.rope.factor)) * 1e6) / 1e6;  // given with few digits
}

std::uint32_t dense_layers(const model::MoeConfig& moe) {
    return static_cast<std::uint32_t>(std::find(moe.layers.begin(), moe.layers.end(), true) - moe.layers.begin());
}

Status to_gguf(const model::Config& config, ArchKeys& keys) {
    const model::LatentConfig& latent = *config.latent;
    const model::MoeConfig& moe = *config.moe;
    const RoutingRule& rule = moe.rule;
    if (latent.norm_eps != config.norm_eps) {
        return fail(Errc::bad_input, "rms_norm_eps is {}, but that of the latents {}: a GGUF of deepseek2 has one",
                    config.norm_eps, latent.norm_eps);
    }
    if (latent.q_rank != 0) {
        keys.count("attention.q_lora_rank", latent.q_rank);
    } else if (config.n_layers != 26 && config.n_layers != 27) {
        keys.warn(
            fmt::format("llama.cpp knows deepseek2 without compressed queries by 26 or 27 layers, and does not load "
                        "one of {}",
                        config.n_layers));
    }
    keys.count("attention.kv_lora_rank", latent.kv_rank);
    keys.count("leading_dense_block_count", dense_layers(moe));
    keys.count("expert_feed_forward_length", moe.expert_ffn);
    keys.count("expert_shared_count", moe.n_shared);
    keys.number("expert_weights_scale", rule.scale);
    keys.flag("expert_weights_norm", rule.normalize);
    keys.count("expert_gating_func", rule.score == RoutingRule::Score::sigmoid ? 2 : 1);
    keys.count("expert_group_count", rule.n_groups);
    keys.count("expert_group_used_count", rule.top_groups);
    if (rule.n_groups > 1 && rule.group_score == RoutingRule::GroupScore::highest) {
        keys.warn(
            "llama.cpp judges groups of experts as DeepSeek-V3 does, by the two best of each, and may choose others");
    }
    if (config.rope.scaling == model::RopeScalingKind::yarn) {
        if (all_dims(config) == 0) {
            return fail(Errc::bad_input, "YaRN without mscale_all_dim has no place in a GGUF of deepseek2");
        }
        keys.number("rope.scaling.yarn_log_multiplier", 0.1 * all_dims(config));
    }
    if (config.n_other_layers > 0) {
        keys.warn(fmt::format("tensors of {} layers that predict further tokens, if there are any, are left out",
                              config.n_other_layers));
    }
    return {};
}

Result<Json> to_config(const model::Config& config, const ConfigKeys& names) {
    const model::LatentConfig& latent = *config.latent;
    const model::MoeConfig& moe = *config.moe;
    const RoutingRule& rule = moe.rule;
    HETERO_TRY(Json json, describe_config(config, names));
    json["num_key_value_heads"] = config.n_heads;
    json["attention_bias"] = false;
    json["q_lora_rank"] = latent.q_rank == 0 ? Json() : Json(latent.q_rank);
    json["kv_lora_rank"] = latent.kv_rank;
    json["qk_nope_head_dim"] = latent.plain_dim;
    json["qk_rope_head_dim"] = latent.rope_dim;
    json["v_head_dim"] = latent.v_dim;
    json["n_routed_experts"] = moe.n_experts;
    json["n_shared_experts"] = moe.n_shared == 0 ? Json() : Json(moe.n_shared);
    json["num_experts_per_tok"] = rule.top_k;
    json["moe_intermediate_size"] = moe.expert_ffn;
    json["first_k_dense_replace"] = dense_layers(moe);
    json["moe_layer_freq"] = 1;
    json["routed_scaling_factor"] = shortest(rule.scale);
    json["norm_topk_prob"] = rule.normalize;
    json["n_group"] = rule.n_groups;
    json["topk_group"] = rule.top_groups;
    if (config.rope.scaling == model::RopeScalingKind::yarn) {
        json["rope_scaling"].erase("attention_factor");
        json["rope_scaling"]["mscale"] = json["rope_scaling"]["mscale_all_dim"] = all_dims(config);
    }
    return json;
}

Result<Json> to_v2_config(const model::Config& config) {
    HETERO_TRY(Json json, to_config(config, {.class_name = "DeepseekV2ForCausalLM", .model_type = "deepseek_v2"}));
    json["scoring_func"] = "softmax";
    json["topk_method"] = config.moe->rule.n_groups > 1 ? "group_limited_greedy" : "greedy";
    return json;
}

Result<Json> to_v3_config(const model::Config& config) {
    HETERO_TRY(Json json, to_config(config, {.class_name = "DeepseekV3ForCausalLM", .model_type = "deepseek_v3"}));
    json["scoring_func"] = "sigmoid";
    json["topk_method"] = "noaux_tc";
    json["rope_interleave"] = true;
    json["num_nextn_predict_layers"] = 0;
    return json;
}

}  // namespace

extern const Conversion deepseek_v2_conversion{.arch = "deepseek_v2", .to_gguf = &to_gguf, .to_config = &to_v2_config};
extern const Conversion deepseek_v3_conversion{.arch = "deepseek_v3", .to_gguf = &to_gguf, .to_config = &to_v3_config};

}  // namespace hetero::convert
