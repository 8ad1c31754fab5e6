// DeepSeek-V3 (https://arxiv.org/abs/2412.19437): DeepSeek-V2 with a router of sigmoid scores, whose choice a bias
// balances and the sums of the two highest of each group limit. Layers that predict further tokens are not computed.
#include "model/families/deepseek.h"

namespace hetero::model {
namespace {

Result<std::uint32_t> groups(Keys& keys, std::string_view key, std::uint32_t missing) {
    if (!keys.has(key)) return missing;
    return keys.count(key, limits::experts);
}

Status read_routing(Keys& keys, MoeConfig& moe) {
    HETERO_CHECK(keys.only_text("scoring_func", "sigmoid"));
    HETERO_CHECK(keys.only_text("topk_method", "noaux_tc"));
    RoutingRule& rule = moe.rule;
    rule.score = RoutingRule::Score::sigmoid;
    rule.group_score = RoutingRule::GroupScore::highest_two;
    HETERO_TRY(const auto normalize, keys.boolean("norm_topk_prob"));
    rule.normalize = normalize.value_or(true);
    HETERO_TRY(rule.n_groups, groups(keys, "n_group", 8));
    HETERO_TRY(rule.top_groups, groups(keys, "topk_group", 4));
    return {};
}

Result<Config> config_from_folder(Keys& keys) {
    HETERO_TRY(Config config,
               read_deepseek_folder(
                   keys, {.class_name = "DeepseekV3ForCausalLM", .model_type = "deepseek_v3", .dense_layers = 3}));
    HETERO_TRY(const auto interleaved, keys.boolean("rope_interleave"));
    config.rope.pairing =
        interleaved.value_or(true) ? kernels::RopePairing::interleaved : kernels::RopePairing::half_split;
    HETERO_CHECK(read_routing(keys, *config.moe));
    if (!keys.has("routed_scaling_factor")) config.moe->rule.scale = 2.5F;
    HETERO_TRY(const auto further,
               agreed_number(keys, {"num_nextn_predict_layers", "num_mtp_layers"}, 0, limits::layers));
    config.n_other_layers = static_cast<std::uint32_t>(further.value_or(1));
    HETERO_CHECK(keys.refuse_unread(""));
    return config;
}

Result<Config> read_config(Keys& keys, Container container) {
    HETERO_TRY(Config config, container == Container::gguf ? read_deepseek_gguf(keys) : config_from_folder(keys));
    config.arch = "deepseek_v3";
    config.moe->selection_bias = true;
    HETERO_CHECK(check_deepseek(keys.file(), config));
    return config;
}

Result<Program> build(Config& config, WeightReader& weights, Container container) {
    return build_deepseek(config, weights, container, config.n_other_layers);
}

}  // namespace

extern const Family deepseek_v3_family{"deepseek_v3",     "deepseek2",        "deepseek_v3", &read_config,
                                       &deepseek_decoder, &routes_by_sigmoid, &build};

}  // namespace hetero::model
