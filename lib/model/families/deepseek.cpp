#include "model/families/deepseek.h"

#include <cmath>

namespace hetero::model {
namespace {

constexpr double max_scale = 1e6;

// Under YaRN scores grow too, by the square of what all dimensions grow by.
float scaled_attention(const Config& config, double all_dims) {
    if (config.rope.scaling == RopeScalingKind::none || all_dims == 0) return 0;
    const double growth = yarn_growth(config.rope.factor, all_dims);
    return static_cast<float>(growth * growth / std::sqrt(static_cast<double>(config.head_dim)));
}

void set_heads(Config& config) {
    config.n_kv_heads = 1;
    config.head_dim = config.latent->plain_dim + config.latent->rope_dim;
    config.rope.rotary_dim = config.latent->rope_dim;
}

// Groups of published models, by their number of experts: files from before the keys do not tell.
struct Published {
    std::uint32_t experts, n_groups, top_groups;
};
constexpr Published published[] = {{64, 1, 1}, {160, 8, 3}, {256, 8, 4}};

Status read_gguf_groups(Keys& keys, MoeConfig& moe) {
    HETERO_TRY(const auto groups, keys.integer("deepseek2.expert_group_count", 0, limits::experts));
    HETERO_TRY(const auto top, keys.integer("deepseek2.expert_group_used_count", 0, limits::experts));
    RoutingRule& rule = moe.rule;
    rule.group_score = rule.score == RoutingRule::Score::sigmoid ? RoutingRule::GroupScore::highest_two
                                                                 : RoutingRule::GroupScore::highest;
    if (groups && top) {
        rule.n_groups = static_cast<std::uint32_t>(std::max<std::int64_t>(*groups, 1));
        rule.top_groups = static_cast<std::uint32_t>(std::max<std::int64_t>(*top, 1));
        return {};
    }
    for (const Published& one : published) {
        if (one.experts != moe.n_experts) continue;
        rule.n_groups = one.n_groups;
        rule.top_groups = one.top_groups;
        return {};
    }
    return fail(Errc::bad_input,
                "{}: deepseek2.expert_group_count and deepseek2.expert_group_used_count are needed: no published model "
                "with {} experts tells the groups",
                keys.file(), moe.n_experts);
}

}  // namespace

Result<Config> read_deepseek_folder(Keys& keys, const DeepseekKeys& version) {
    HETERO_TRY(Config config,
               read_folder(keys, {.class_name = version.class_name, .model_type = version.model_type, .latent = true}));
    LatentConfig latent;
    HETERO_TRY(const auto q_rank, keys.integer("q_lora_rank", 1, limits::hidden));
    if (!keys.has("q_lora_rank")) {
        return fail(Errc::bad_input, "{}: q_lora_rank is missing (null: queries are not compressed)", keys.file());
    }
    latent.q_rank = static_cast<std::uint32_t>(q_rank.value_or(0));
    HETERO_TRY(latent.kv_rank, keys.count("kv_lora_rank", limits::head_dim));
    HETERO_TRY(latent.plain_dim, keys.count("qk_nope_head_dim", limits::head_dim));
    HETERO_TRY(latent.rope_dim, keys.count("qk_rope_head_dim", limits::head_dim));
    HETERO_TRY(latent.v_dim, keys.count("v_head_dim", limits::head_dim));
    config.latent = latent;
    set_heads(config);
    // Derived ones, as transformers writes them.
    HETERO_CHECK(keys.only_number("qk_head_dim", config.head_dim));
    HETERO_CHECK(keys.only_number("head_dim", latent.rope_dim));
    HETERO_CHECK(keys.only_number("num_key_value_heads", config.n_heads));

    HETERO_CHECK(read_rope(keys, config.rope, {.yarn_context = config.context_length}));
    HETERO_TRY(const auto all_dims,
               agreed_number(keys, {"rope_scaling.mscale_all_dim", "rope_parameters.mscale_all_dim"}, 0, max_scale));
    config.attention_scale = scaled_attention(config, all_dims.value_or(0));
    HETERO_CHECK(keys.only_text("hidden_act", "silu"));
    HETERO_CHECK(keys.only_flag("attention_bias", false));

    MoeConfig moe;
    HETERO_TRY(moe.n_experts, keys.count("n_routed_experts", limits::experts));
    HETERO_TRY(moe.rule.top_k, keys.count("num_experts_per_tok", limits::experts));
    HETERO_TRY(moe.expert_ffn, keys.count("moe_intermediate_size", limits::ffn));
    if (!keys.has("n_shared_experts")) {
        return fail(Errc::bad_input, "{}: n_shared_experts is missing (null: none)", keys.file());
    }
    HETERO_TRY(const auto shared, keys.integer("n_shared_experts", 0, limits::experts));
    moe.n_shared = static_cast<std::uint32_t>(shared.value_or(0));
    HETERO_TRY(const auto dense, keys.integer("first_k_dense_replace", 0, limits::layers));
    HETERO_CHECK(keys.only_number("moe_layer_freq", 1));
    moe.layers.resize(config.n_layers);
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
        moe.layers[layer] = layer >= dense.value_or(version.dense_layers);
    }
    HETERO_TRY(const auto scale, keys.number("routed_scaling_factor", 1e-6, max_scale));
    moe.rule.scale = static_cast<float>(scale.value_or(1));
    config.moe = std::move(moe);
    // Of training, of where experts are placed, and of how products are sliced.
    keys.harmless(
        {"output_router_logits", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "ep_size", "pretraining_tp"});
    return config;
}

Result<Config> read_deepseek_gguf(Keys& keys) {
    // The converter leaves pairs side by side, as the checkpoint has them.
    const GgufKeys names{.arch = "deepseek2",
                         .pairing = kernels::RopePairing::interleaved,
                         .yarn = true,
                         .experts = true,
                         .latent = true};
    HETERO_TRY(Config config, read_gguf(keys, names));
    LatentConfig latent;
    latent.norm_eps = config.norm_eps;
    HETERO_TRY(const auto q_rank, keys.integer("deepseek2.attention.q_lora_rank", 0, limits::hidden));
    latent.q_rank = static_cast<std::uint32_t>(q_rank.value_or(0));
    HETERO_TRY(latent.kv_rank, keys.count("deepseek2.attention.kv_lora_rank", limits::head_dim));
    HETERO_TRY(latent.rope_dim, keys.count("deepseek2.rope.dimension_count", limits::head_dim));
    // Files for absorbed attention call the sizes of heads key_length_mla and value_length_mla, and have those of the
    // latents under the usual keys.
    HETERO_TRY(std::uint32_t key_length, keys.count("deepseek2.attention.key_length", 2 * limits::head_dim));
    HETERO_TRY(latent.v_dim, keys.count("deepseek2.attention.value_length", limits::head_dim));
    HETERO_TRY(const auto key_mla, keys.integer("deepseek2.attention.key_length_mla", 1, 2 * limits::head_dim));
    HETERO_TRY(const auto value_mla, keys.integer("deepseek2.attention.value_length_mla", 1, limits::head_dim));
    if (key_mla.has_value() != value_mla.has_value()) {
        return fail(Errc::bad_input, "{}: deepseek2.attention has one of key_length_mla and value_length_mla, not both",
                    keys.file());
    }
    if (key_mla) {
        HETERO_CHECK(keys.only_number("deepseek2.attention.key_length", latent.kv_rank + latent.rope_dim));
        HETERO_CHECK(keys.only_number("deepseek2.attention.value_length", latent.kv_rank));
        key_length = static_cast<std::uint32_t>(*key_mla);
        latent.v_dim = static_cast<std::uint32_t>(*value_mla);
    }
    if (key_length <= latent.rope_dim) {
        return fail(Errc::bad_input, "{}: keys of {} with {} dimensions of RoPE have none without", keys.file(),
                    key_length, latent.rope_dim);
    }
    latent.plain_dim = key_length - latent.rope_dim;
    config.latent = latent;
    HETERO_TRY(const std::uint32_t kv_heads, keys.count("deepseek2.attention.head_count_kv", limits::heads, 1));
    if (kv_heads != 1 && kv_heads != config.n_heads) {
        return fail(Errc::bad_input, "{}: deepseek2.attention.head_count_kv is {}; 1 and {} are implemented",
                    keys.file(), kv_heads, config.n_heads);
    }
    set_heads(config);
    HETERO_CHECK(read_gguf_rope(keys, names, config));
    HETERO_TRY(const auto multiplier, keys.number("deepseek2.rope.scaling.yarn_log_multiplier", 0, max_scale));
    if (config.rope.scaling == RopeScalingKind::yarn) {
        if (multiplier.value_or(0) == 0) {
            return fail(Errc::bad_input, "{}: YaRN without deepseek2.rope.scaling.yarn_log_multiplier", keys.file());
        }
        // It is a tenth of mscale_all_dim, as f32; mscale is the same in all models that GGUF can tell, so that Q and
        // K by themselves do not grow.
        config.attention_scale = scaled_attention(config, std::round(*multiplier * 1e7) / 1e6);
        config.rope.attention_factor = 1;
    }

    HETERO_TRY(MoeConfig moe, read_gguf_experts(keys, "deepseek2", config, false));
    HETERO_CHECK(read_gguf_groups(keys, moe));
    HETERO_TRY(const auto dense, keys.integer("deepseek2.leading_dense_block_count", 0, limits::layers));
    moe.layers.resize(config.n_layers);
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) moe.layers[layer] = layer >= dense.value_or(0);
    config.moe = std::move(moe);
    HETERO_CHECK(keys.only_number("deepseek2.nextn_predict_layers", 0));
    HETERO_CHECK(keys.refuse_unread("deepseek2."));
    return config;
}

bool routes_by_sigmoid(Keys& gguf) {
    const auto score = gguf.integer("deepseek2.expert_gating_func", 0, 255);
    return score && score->value_or(1) == 2;
}

Status check_deepseek(const std::string& file, const Config& config) {
    HETERO_CHECK(check_heads(file, config));
    return check_experts(file, *config.moe);
}

Decoder deepseek_decoder(Container container) {
    const bool gguf = container == Container::gguf;
    return {.names = gguf ? gguf_names : folder_names,
            .latent = gguf ? &gguf_latent_names : &folder_latent_names,
            .experts = gguf ? &gguf_expert_names : &folder_expert_names};
}

Result<Program> build_deepseek(Config& config, WeightReader& weights, Container container,
                               std::uint32_t n_other_layers) {
    Decoder decoder = deepseek_decoder(container);
    for (std::uint32_t i = 0; i < n_other_layers; ++i) {
        decoder.elsewhere.push_back(fmt::format(fmt::runtime(decoder.names.layer), config.n_layers + i));
    }
    return build_decoder(config, weights, container, decoder);
}

}  // namespace hetero::model
