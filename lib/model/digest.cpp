#include "model/digest.h"

#include <fmt/ranges.h>

#include <algorithm>

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
    if (rope.scaling != RopeScalingKind::none) add("factor", fmt::format("{}", rope.factor));
    if (!rope.frequency_divisors.empty()) {
        add("frequency_divisors", fmt::format("[{}]", fmt::join(rope.frequency_divisors, ",")));
    }
    if (rope.scaling == RopeScalingKind::llama3) {
        add("high_freq_factor", fmt::format("{}", rope.high_freq_factor));
        add("low_freq_factor", fmt::format("{}", rope.low_freq_factor));
        add("original_max_position_embeddings", fmt::format("{}", rope.original_context));
    }
    if (rope.scaling == RopeScalingKind::linear) add("rope_type", "\"linear\"");
    if (rope.scaling == RopeScalingKind::llama3) add("rope_type", "\"llama3\"");
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
    if (config.attention_scale != 0) add("attention_scale", config.attention_scale);
    if (config.attention_softcap != 0) add("attention_softcap", config.attention_softcap);
    if (config.logit_softcap != 0) add("logit_softcap", config.logit_softcap);
    if (config.embedding_scale != 1) add("embedding_scale", config.embedding_scale);
    if (config.activation == Activation::gelu_tanh) add("activation", "gelu_tanh");
    if (config.activation == Activation::gelu_erf) add("activation", "gelu_erf");
    if (config.attention_bias) add("attention_bias", true);
    if (config.parallel_residual) add("parallel_residual", true);
    return text;
}

}  // namespace hetero::model
