#include <algorithm>

#include "convert/family.h"

namespace hetero::convert {
namespace {

Status to_gguf(const model::Config& config, ArchKeys& keys) {
    const model::MoeConfig& moe = *config.moe;
    keys.count("expert_feed_forward_length", moe.expert_ffn);
    keys.flag("expert_weights_norm", moe.rule.normalize);
    if (!moe.rule.normalize)
        keys.warn("llama.cpp makes the weights of a qwen3moe's experts sum to one, this model does not");
    if (std::find(moe.layers.begin(), moe.layers.end(), false) != moe.layers.end()) {
        keys.warn("llama.cpp loads a qwen3moe only where every layer has experts; here some have none");
    }
    return {};
}

Result<Json> to_config(const model::Config& config) {
    const model::MoeConfig& moe = *config.moe;
    HETERO_TRY(
        Json json,
        describe_config(config, {.class_name = "Qwen3MoeForCausalLM", .model_type = "qwen3_moe", .head_dim = true}));
    json["attention_bias"] = false;
    json["use_sliding_window"] = false;
    json["sliding_window"] = nullptr;
    json["moe_intermediate_size"] = moe.expert_ffn;
    json["num_experts"] = moe.n_experts;
    json["num_experts_per_tok"] = moe.rule.top_k;
    json["norm_topk_prob"] = moe.rule.normalize;
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = Json::array();
    for (std::size_t layer = 0; layer < moe.layers.size(); ++layer) {
        if (!moe.layers[layer]) json["mlp_only_layers"].push_back(layer);
    }
    return json;
}

}  // namespace

extern const Conversion qwen3_moe_conversion{.arch = "qwen3_moe", .to_gguf = &to_gguf, .to_config = &to_config};

}  // namespace hetero::convert
