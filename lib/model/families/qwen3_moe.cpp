// Qwen3 MoE (https://arxiv.org/abs/2505.09388): a Qwen3 whose FFN is a mixture of experts in all or some layers.
#include "model/families/shared.h"

namespace hetero::model {
namespace {

Result<Config> config_from_gguf(Keys& keys) {
    HETERO_TRY(Config config, read_gguf(keys, {.arch = "qwen3moe", .yarn = true, .experts = true}));
    HETERO_TRY(MoeConfig moe, read_gguf_experts(keys, "qwen3moe", config, true));
    config.moe = std::move(moe);
    HETERO_CHECK(keys.only_number("qwen3moe.expert_gating_func", 1.0));
    HETERO_CHECK(keys.only_number("qwen3moe.expert_shared_count", 0.0));
    HETERO_CHECK(keys.refuse_unread("qwen3moe."));
    return config;
}

// Every decoder_sparse_step-th layer has experts, but for those in mlp_only_layers.
Result<std::vector<bool>> expert_layers(Keys& keys, const Config& config) {
    HETERO_TRY(const std::uint32_t step, keys.count("decoder_sparse_step", limits::layers, 1));
    HETERO_TRY(const auto dense, keys.integers("mlp_only_layers"));
    std::vector<bool> layers(config.n_layers);
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) layers[layer] = (layer + 1) % step == 0;
    for (const std::int64_t layer : dense.value_or(std::vector<std::int64_t>{})) {
        if (layer < 0 || layer >= config.n_layers) {
            return fail(Errc::bad_input, "{}: mlp_only_layers has {}, but layers are 0 to {}", keys.file(), layer,
                        config.n_layers - 1);
        }
        layers[static_cast<std::size_t>(layer)] = false;
    }
    return layers;
}

Result<Config> config_from_folder(Keys& keys) {
    HETERO_TRY(Config config,
               read_folder(keys, {.class_name = "Qwen3MoeForCausalLM", .model_type = "qwen3_moe", .n_kv_heads = 4}));
    HETERO_CHECK(read_rope(keys, config.rope, {.yarn_context = config.context_length}));
    HETERO_CHECK(keys.only_text("hidden_act", "silu"));
    HETERO_CHECK(keys.only_flag("attention_bias", false));
    HETERO_CHECK(keys.only_flag("use_sliding_window", false));
    keys.harmless({"sliding_window", "max_window_layers"});  // of no effect without use_sliding_window
    MoeConfig moe;
    HETERO_TRY(moe.layers, expert_layers(keys, config));
    HETERO_TRY(const auto experts, agreed_number(keys, {"num_experts", "num_local_experts"}, 1, limits::experts));
    moe.n_experts = static_cast<std::uint32_t>(experts.value_or(128));
    HETERO_TRY(moe.rule.top_k, keys.count("num_experts_per_tok", limits::experts, 8));
    HETERO_TRY(moe.expert_ffn, keys.count("moe_intermediate_size", limits::ffn, 768));
    HETERO_TRY(const auto normalize, keys.boolean("norm_topk_prob"));
    moe.rule.normalize = normalize.value_or(false);
    config.moe = std::move(moe);
    keys.harmless({"output_router_logits", "router_aux_loss_coef"});  // of training
    HETERO_CHECK(keys.refuse_unread(""));
    return config;
}

Result<Config> read_config(Keys& keys, Container container) {
    HETERO_TRY(Config config, container == Container::gguf ? config_from_gguf(keys) : config_from_folder(keys));
    config.arch = "qwen3_moe";
    HETERO_CHECK(check_heads(keys.file(), config));
    HETERO_CHECK(check_experts(keys.file(), *config.moe));
    return config;
}

Decoder decoder(Container container) {
    const bool gguf = container == Container::gguf;
    DecoderNames names = gguf ? gguf_names : folder_names;
    name_head_norms(names, container);
    return {.names = names, .experts = gguf ? &gguf_expert_names : &folder_expert_names};
}

}  // namespace

extern const Family qwen3_moe_family{"qwen3_moe", "qwen3moe", "qwen3_moe", &read_config, &decoder};

}  // namespace hetero::model
