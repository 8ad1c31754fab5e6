// DeepSeek-V2 (https://arxiv.org/abs/2405.04434): multi-head latent attention; a mixture of experts with shared ones,
// whose router takes the highest softmax scores, of all experts or of the groups with the highest one.
#include "model/families/deepseek.h"

namespace hetero::model {
namespace {

Status read_routing(Keys& keys, RoutingRule& rule) {
    HETERO_CHECK(keys.only_text("scoring_func", "softmax"));
    HETERO_CHECK(keys.only_flag("norm_topk_prob", false));
    HETERO_TRY(const auto method, keys.text("topk_method"));
    const bool grouped = method == "group_limited_greedy";
    if (method && *method != "greedy" && !grouped) {
        return fail(Errc::bad_input,
                    "{}: topk_method is \"{}\"; \"greedy\" and \"group_limited_greedy\" are implemented", keys.file(),
                    method->substr(0, 64));
    }
    rule.group_score = RoutingRule::GroupScore::highest;
    if (!grouped) {
        keys.harmless({"n_group", "topk_group"});  // not looked at
        return {};
    }
    HETERO_TRY(rule.n_groups, keys.count("n_group", limits::experts));
    HETERO_TRY(rule.top_groups, keys.count("topk_group", limits::experts));
    return {};
}

Result<Config> config_from_folder(Keys& keys) {
    HETERO_TRY(Config config,
               read_deepseek_folder(keys, {.class_name = "DeepseekV2ForCausalLM", .model_type = "deepseek_v2"}));
    config.rope.pairing = kernels::RopePairing::interleaved;
    HETERO_CHECK(read_routing(keys, config.moe->rule));
    HETERO_CHECK(keys.only_flag("mlp_bias", false));
    HETERO_CHECK(keys.refuse_unread(""));
    return config;
}

Result<Config> read_config(Keys& keys, Container container) {
    HETERO_TRY(Config config, container == Container::gguf ? read_deepseek_gguf(keys) : config_from_folder(keys));
    config.arch = "deepseek_v2";
    HETERO_CHECK(keys.only_flag("deepseek2.expert_weights_norm", false));
    HETERO_CHECK(check_deepseek(keys.file(), config));
    return config;
}

Result<Program> build(Config& config, WeightReader& weights, Container container) {
    return build_deepseek(config, weights, container);
}

}  // namespace

extern const Family deepseek_v2_family{
    "deepseek_v2", "deepseek2",       "deepseek_v2",
    &read_config,  &deepseek_decoder, [](Keys& gguf) { return !routes_by_sigmoid(gguf); },
    &build};

}  // namespace hetero::model
