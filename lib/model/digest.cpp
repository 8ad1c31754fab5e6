#include "model/digest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace hetero::model {
namespace {

constexpr std::size_t sample_bytes = 512;
constexpr std::size_t max_samples = 4096;  // of all tensors together
constexpr std::size_t samples_per_tensor = 4;

void update_samples(Sha256& hash, std::span<const std::byte> bytes, std::size_t samples) {
    if (bytes.size() <= samples * sample_bytes) {
        hash.update(bytes);
        return;
    }
    const std::size_t last = bytes.size() - sample_bytes;
    for (std::size_t i = 0; i < samples; ++i) {
        const std::size_t offset = samples == 1 ? last / 2 : last * i / (samples - 1);
        hash.update(bytes.subspan(offset, sample_bytes));
    }
}

}  // namespace

Digest lineage_digest(const io::TensorSource& weights) {
    const auto& names = weights.names();
    const std::size_t samples =
        std::clamp<std::size_t>(max_samples / std::max<std::size_t>(names.size(), 1), 1, samples_per_tensor);
    Sha256 hash;
    hash.update("hetero-lineage 1\n");
    for (const std::string& name : names) {
        const io::TensorView* view = weights.find(name);
        if (view == nullptr) {
            hash.update(fmt::format("{} unreadable\n", name));
            continue;
        }
        hash.update(
            fmt::format("{} {} [{}]\n", name, kernels::dtype_info(view->dtype).name, fmt::join(view->shape, ",")));
        update_samples(hash, view->bytes, samples);
        weights.forget(*view);  // reading a few bytes maps whole runs of pages
    }
    return hash.finish();
}

Digest weights_digest(const Digest& tensors, std::string_view header) {
    Sha256 hash;
    hash.update("hetero-weights 1\n").update(to_hex(tensors)).update("\n").update(header);
    return hash.finish();
}

std::string rope_scaling_text(const RopeConfig& rope) {
    std::string text;
    const auto add = [&text](std::string_view key, const std::string& value) {
        text += fmt::format("{}\"{}\":{}", text.empty() ? "{" : ",", key, value);
    };
    const bool yarn = rope.scaling == RopeScalingKind::yarn;
    if (yarn) {
        add("attention_factor", fmt::format("{}", static_cast<float>(rope.attention_factor)));
        add("beta_fast", fmt::format("{}", rope.beta_fast));
        add("beta_slow", fmt::format("{}", rope.beta_slow));
    }
    if (rope.scaling != RopeScalingKind::none) add("factor", fmt::format("{}", rope.factor));
    if (!rope.frequency_divisors.empty()) {
        add("frequency_divisors", fmt::format("[{}]", fmt::join(rope.frequency_divisors, ",")));
    }
    if (rope.scaling == RopeScalingKind::llama3) {
        add("high_freq_factor", fmt::format("{}", rope.high_freq_factor));
        add("low_freq_factor", fmt::format("{}", rope.low_freq_factor));
        add("original_max_position_embeddings", fmt::format("{}", rope.original_context));
    }
    if (yarn) add("original_max_position_embeddings", fmt::format("{}", rope.original_context));
    if (rope.scaling == RopeScalingKind::linear) add("rope_type", "\"linear\"");
    if (rope.scaling == RopeScalingKind::llama3) add("rope_type", "\"llama3\"");
    if (yarn) add("rope_type", "\"yarn\"");
    if (yarn && !rope.whole_dims) add("truncate", "false");
    return text.empty() ? "none" : text + "}";
}

std::string arch_text(const Config& config) {
    std::string text = fmt::format(
        "hetero-arch "
        "1\narch={}\nn_layers={}\nn_heads={}\nn_kv_heads={}\nhead_dim={}\nhidden={}\nffn={}\nvocab_size={}\n"
        "norm_eps={}\nrope_theta={}\nrotary_dim={}\nrope_scaling={}\n",
        config.arch, config.n_layers, config.n_heads, config.n_kv_heads, config.head_dim, config.hidden, config.ffn,
        config.vocab_size, config.norm_eps, config.rope.theta, config.rope.rotary_dim, rope_scaling_text(config.rope));
    const auto add = [&text](std::string_view key, const auto& value) { text += fmt::format("{}={}\n", key, value); };
    if (std::find(config.sliding.begin(), config.sliding.end(), true) != config.sliding.end()) {
        std::string layers;
        for (const bool sliding : config.sliding) layers += sliding ? '1' : '0';
        add("sliding_layers", layers);
        add("window", config.window);
        if (config.sliding_rope) {
            add("sliding_rope_theta", config.sliding_rope->theta);
            add("sliding_rotary_dim", config.sliding_rope->rotary_dim);
            add("sliding_rope_scaling", rope_scaling_text(*config.sliding_rope));
        }
    }
    // A folder of some families always says how scores are scaled, a GGUF only where it is not the usual.
    if (const auto usual = static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim)));
        config.attention_scale != 0 && config.attention_scale != usual) {
        add("attention_scale", config.attention_scale);
    }
    if (config.attention_softcap != 0) add("attention_softcap", config.attention_softcap);
    if (config.logit_softcap != 0) add("logit_softcap", config.logit_softcap);
    if (config.embedding_scale != 1) add("embedding_scale", config.embedding_scale);
    if (config.activation == Activation::gelu_tanh) add("activation", "gelu_tanh");
    if (config.activation == Activation::gelu_erf) add("activation", "gelu_erf");
    if (config.attention_bias) add("attention_bias", true);
    if (config.parallel_residual) add("parallel_residual", true);
    if (config.latent) {
        const LatentConfig& latent = *config.latent;
        add("q_lora_rank", latent.q_rank);
        add("kv_lora_rank", latent.kv_rank);
        add("qk_nope_head_dim", latent.plain_dim);
        add("qk_rope_head_dim", latent.rope_dim);
        add("v_head_dim", latent.v_dim);
        add("latent_norm_eps", latent.norm_eps);
    }
    if (config.moe) {
        const MoeConfig& moe = *config.moe;
        const RoutingRule& rule = moe.rule;
        std::string layers;
        for (const bool sparse : moe.layers) layers += sparse ? '1' : '0';
        add("moe_layers", layers);
        add("experts", moe.n_experts);
        add("experts_used", rule.top_k);
        add("expert_ffn", moe.expert_ffn);
        add("shared_experts", moe.n_shared);
        add("router_score", rule.score == RoutingRule::Score::sigmoid ? "sigmoid" : "softmax");
        add("router_bias", moe.selection_bias);
        add("router_normalize", rule.normalize);
        add("router_scale", rule.scale);
        if (rule.n_groups > 1) {
            add("router_groups", rule.n_groups);
            add("router_top_groups", rule.top_groups);
            add("router_group_score", rule.group_score == RoutingRule::GroupScore::highest ? "highest" : "highest_two");
        }
    }
    return text;
}

}  // namespace hetero::model
