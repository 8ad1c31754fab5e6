// Mixtral (https://arxiv.org/abs/2401.04088): a Mistral whose FFN is a mixture of experts. In GGUF such models are
// called llama.
#include "model/families/shared.h"

namespace hetero::model {
namespace {

const ExpertNames folder_names_of_experts{.router = "block_sparse_moe.gate.weight",
                                          .selection_bias = {},
                                          .gate = "block_sparse_moe.experts.{}.w1.weight",
                                          .up = "block_sparse_moe.experts.{}.w3.weight",
                                          .down = "block_sparse_moe.experts.{}.w2.weight"};

Result<Config> config_from_gguf(Keys& keys) {
    HETERO_TRY(
        Config config,
        read_gguf(keys,
                  {.arch = "llama", .pairing = kernels::RopePairing::interleaved, .yarn = true, .experts = true}));
    HETERO_TRY(MoeConfig moe, read_gguf_experts(keys, "llama", config, true));
    moe.layers.assign(config.n_layers, true);
    config.moe = std::move(moe);
    HETERO_CHECK(read_llama_window(keys, config));
    HETERO_CHECK(keys.only_flag("llama.use_parallel_residual", false));
    HETERO_CHECK(keys.only_flag("llama.expert_weights_norm", true));
    HETERO_CHECK(keys.only_number("llama.expert_weights_scale", 1.0));
    HETERO_CHECK(keys.only_number("llama.expert_gating_func", 1.0));
    HETERO_CHECK(keys.only_number("llama.expert_shared_count", 0.0));
    HETERO_CHECK(keys.refuse_unread("llama."));
    return config;
}

Result<Config> config_from_folder(Keys& keys) {
    HETERO_TRY(
        Config config,
        read_folder(keys,
                    {.class_name = "MixtralForCausalLM", .model_type = "mixtral", .n_kv_heads = 8, .norm_eps = 1e-5}));
    HETERO_CHECK(read_rope(keys, config.rope, {.theta = 1e6, .yarn_context = config.context_length}));
    HETERO_CHECK(keys.only_text("hidden_act", "silu"));
    HETERO_TRY(config.window, read_window(keys, 0));
    HETERO_CHECK(read_sliding_layers(keys, config, [](std::uint32_t) { return true; }));
    MoeConfig moe;
    moe.layers.assign(config.n_layers, true);
    HETERO_TRY(moe.n_experts, keys.count("num_local_experts", limits::experts, 8));
    HETERO_TRY(moe.rule.top_k, keys.count("num_experts_per_tok", limits::experts, 2));
    moe.expert_ffn = config.ffn;
    moe.rule.normalize = true;
    config.moe = std::move(moe);
    keys.harmless({"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"});  // of training
    HETERO_CHECK(keys.refuse_unread(""));
    return config;
}

Result<Config> read_config(Keys& keys, Container container) {
    HETERO_TRY(Config config, container == Container::gguf ? config_from_gguf(keys) : config_from_folder(keys));
    config.arch = "mixtral";
    HETERO_CHECK(check_heads(keys.file(), config));
    HETERO_CHECK(check_experts(keys.file(), *config.moe));
    return config;
}

Decoder decoder(Container container) {
    const bool gguf = container == Container::gguf;
    return {.names = gguf ? gguf_names : folder_names, .experts = gguf ? &gguf_expert_names : &folder_names_of_experts};
}

}  // namespace

extern const Family mixtral_family{"mixtral", "llama", "mixtral", &read_config, &decoder, &has_llama_experts};

}  // namespace hetero::model
