#include "model/families/shared.h"

#include <algorithm>
#include <cmath>

namespace hetero::model {
namespace {

constexpr double max_factor = 1e6;
constexpr double max_theta = 1e12;

Result<std::uint32_t> hidden_per_head(const Keys& keys, const Config& config) {
    if (config.hidden % config.n_heads != 0) {
        return fail(Errc::bad_input, "{}: hidden size {} is not a multiple of {} heads, and no head size is given",
                    keys.file(), config.hidden, config.n_heads);
    }
    return config.hidden / config.n_heads;
}

constexpr double max_scale = 1e6;

Status gguf_heads(Keys& keys, const std::function<std::string(std::string_view)>& key, Config& config) {
    HETERO_TRY(config.n_kv_heads, keys.count(key("attention.head_count_kv"), limits::heads, config.n_heads));
    HETERO_TRY(const auto key_length, keys.integer(key("attention.key_length"), 1, limits::head_dim));
    if (key_length) {
        config.head_dim = static_cast<std::uint32_t>(*key_length);
    } else {
        HETERO_TRY(config.head_dim, hidden_per_head(keys, config));
    }
    return keys.only_number(key("attention.value_length"), static_cast<double>(config.head_dim));
}

Status folder_heads(Keys& keys, const FolderKeys& family, Config& config) {
    // As the configuration classes do, null means "as many as heads" even where a missing key does not.
    const bool given = keys.has("num_key_value_heads");
    HETERO_TRY(config.n_kv_heads, keys.count("num_key_value_heads", limits::heads,
                                             given ? config.n_heads : family.n_kv_heads.value_or(config.n_heads)));
    HETERO_TRY(const auto head_dim, keys.integer("head_dim", 1, limits::head_dim));
    if (head_dim || family.head_dim) {
        config.head_dim = head_dim ? static_cast<std::uint32_t>(*head_dim) : *family.head_dim;
    } else {
        HETERO_TRY(config.head_dim, hidden_per_head(keys, config));
    }
    config.rope.pairing = kernels::RopePairing::half_split;
    config.rope.rotary_dim = config.head_dim;
    return {};
}

Status check_yarn(const std::string& file, const RopeConfig& rope) {
    if (rope.beta_fast <= rope.beta_slow) {
        return fail(Errc::bad_input, "{}: RoPE scaling: beta_fast {} must be larger than beta_slow {}", file,
                    rope.beta_fast, rope.beta_slow);
    }
    if (rope.theta <= 1) return fail(Errc::bad_input, "{}: YaRN needs a RoPE base above 1, found {}", file, rope.theta);
    return {};
}

// The keys and defaults of transformers (modeling_rope_utils).
Status folder_yarn(Keys& keys, const std::string& section, std::uint32_t context, RopeConfig& rope) {
    rope.scaling = RopeScalingKind::yarn;
    HETERO_TRY(rope.original_context,
               keys.count(section + "original_max_position_embeddings", limits::context, context));
    HETERO_TRY(const auto fast, keys.number(section + "beta_fast", 0, max_factor));
    HETERO_TRY(const auto slow, keys.number(section + "beta_slow", 0, max_factor));
    rope.beta_fast = fast.value_or(0) != 0 ? *fast : 32;
    rope.beta_slow = slow.value_or(0) != 0 ? *slow : 1;
    HETERO_TRY(const auto whole, keys.boolean(section + "truncate"));
    rope.whole_dims = whole.value_or(true);
    HETERO_TRY(const auto given, keys.number(section + "attention_factor", 1e-6, max_factor));
    HETERO_TRY(const auto scale, keys.number(section + "mscale", 0, max_factor));
    HETERO_TRY(const auto all_dims, keys.number(section + "mscale_all_dim", 0, max_factor));
    const bool both = scale.value_or(0) != 0 && all_dims.value_or(0) != 0;
    const double growth =
        both ? yarn_growth(rope.factor, *scale) / yarn_growth(rope.factor, *all_dims) : yarn_growth(rope.factor);
    rope.attention_factor = given.value_or(growth);
    return check_yarn(keys.file(), rope);
}

// YaRN as llama.cpp stores it: attention grows with the factor alone.
Status gguf_yarn(Keys& keys, const std::function<std::string(std::string_view)>& key, RopeConfig& rope) {
    HETERO_TRY(rope.original_context, keys.count(key("scaling.original_context_length"), limits::context));
    HETERO_TRY(const auto fast, keys.number(key("scaling.yarn_beta_fast"), 1e-6, max_factor));
    HETERO_TRY(const auto slow, keys.number(key("scaling.yarn_beta_slow"), 1e-6, max_factor));
    rope.beta_fast = fast.value_or(32);
    rope.beta_slow = slow.value_or(1);
    HETERO_CHECK(keys.only_number(key("scaling.yarn_ext_factor"), 1.0));
    HETERO_CHECK(keys.only_number(key("scaling.yarn_attn_factor"), 1.0));
    rope.scaling = RopeScalingKind::yarn;
    rope.attention_factor = yarn_growth(rope.factor);
    return check_yarn(keys.file(), rope);
}

}  // namespace

Status read_gguf_rope(Keys& keys, const GgufKeys& family, Config& config) {
    const auto key = [&family](std::string_view name) { return fmt::format("{}.rope.{}", family.arch, name); };
    RopeConfig& rope = config.rope;
    rope.pairing = family.pairing;
    HETERO_TRY(rope.rotary_dim, keys.count(key("dimension_count"), limits::head_dim, config.head_dim));
    HETERO_TRY(const auto theta, keys.number(key("freq_base"), 1, max_theta));
    rope.theta = static_cast<float>(theta.value_or(family.theta));
    HETERO_TRY(const auto kind, keys.text(key("scaling.type")));
    const bool yarn = family.yarn && kind.value_or("") == "yarn";
    if (kind && *kind != "none" && *kind != "linear" && !yarn) {
        return fail(Errc::bad_input, "{}: {} is \"{}\"; {} are implemented", keys.file(), key("scaling.type"), *kind,
                    family.yarn ? "\"none\", \"linear\" and \"yarn\"" : "\"none\" and \"linear\"");
    }
    HETERO_TRY(const auto factor, keys.number(key("scaling.factor"), 0, max_factor));
    HETERO_TRY(const auto old_factor, keys.number(key("scale_linear"), 0, max_factor));
    const double stretch = factor.value_or(old_factor.value_or(1));
    HETERO_CHECK(keys.only_number(key("scaling.attn_factor"), 1.0));
    if (kind.value_or("linear") != "none" && stretch != 0 && stretch != 1) {  // 0 stands for "not set"
        rope.scaling = RopeScalingKind::linear;
        rope.factor = static_cast<float>(stretch);
        if (yarn) HETERO_CHECK(gguf_yarn(keys, key, rope));
    }
    HETERO_TRY(const auto original_context, keys.integer(key("scaling.original_context_length"), 0, limits::context));
    if (!yarn) rope.original_context = static_cast<std::uint32_t>(original_context.value_or(0));
    keys.harmless({key("scaling.finetuned")});
    return {};
}

Result<Config> read_gguf(Keys& keys, const GgufKeys& family) {
    const auto key = [&family](std::string_view name) { return fmt::format("{}.{}", family.arch, name); };
    Config config;
    HETERO_TRY(const auto name, keys.text("general.name"));
    config.name = name.value_or("");
    HETERO_TRY(config.n_layers, keys.count(key("block_count"), limits::layers));
    HETERO_TRY(config.hidden, keys.count(key("embedding_length"), limits::hidden));
    HETERO_TRY(config.ffn, keys.count(key("feed_forward_length"), limits::ffn));
    HETERO_TRY(config.context_length, keys.count(key("context_length"), limits::context));
    HETERO_TRY(config.n_heads, keys.count(key("attention.head_count"), limits::heads));
    HETERO_TRY(const auto vocab, keys.integer(key("vocab_size"), 1, limits::vocab));
    config.vocab_size = static_cast<std::uint32_t>(vocab.value_or(0));  // 0: as the embedding has rows
    HETERO_TRY(const auto eps, keys.number(key(family.norm_eps), 0, 1));
    if (!eps) return fail(Errc::bad_input, "{}: {} is missing", keys.file(), key(family.norm_eps));
    config.norm_eps = static_cast<float>(*eps);
    if (!family.latent) {
        HETERO_CHECK(gguf_heads(keys, key, config));
        HETERO_CHECK(read_gguf_rope(keys, family, config));
    }
    if (!family.experts) {
        HETERO_CHECK(keys.only_number(key("expert_count"), 0.0));
        HETERO_CHECK(keys.only_number(key("expert_used_count"), 0.0));
    }
    HETERO_CHECK(keys.only_flag(key("attention.causal"), true));
    HETERO_TRY(const auto parts, keys.integer("split.count", 0, 1 << 20));
    if (parts.value_or(1) > 1) {
        return fail(Errc::bad_input, "{}: is one of {} parts of a split GGUF; join them with llama-gguf-split --merge",
                    keys.file(), *parts);
    }
    keys.harmless({key("tensor_data_layout")});
    return config;
}

Status read_llama_window(Keys& keys, Config& config) {
    HETERO_TRY(const auto window, keys.integer("llama.attention.sliding_window", 0, limits::context));
    config.window = static_cast<std::uint32_t>(window.value_or(0));
    config.sliding.assign(config.n_layers, config.window != 0);
    return {};
}

bool has_llama_experts(Keys& keys) {
    const auto experts = keys.integer("llama.expert_count", 0, limits::experts);
    return experts && experts->value_or(0) > 0;
}

Result<MoeConfig> read_gguf_experts(Keys& keys, std::string_view arch, const Config& config, bool normalize) {
    const auto key = [arch](std::string_view name) { return fmt::format("{}.{}", arch, name); };
    MoeConfig moe;
    HETERO_TRY(moe.n_experts, keys.count(key("expert_count"), limits::experts));
    HETERO_TRY(moe.rule.top_k, keys.count(key("expert_used_count"), limits::experts));
    HETERO_TRY(moe.expert_ffn, keys.count(key("expert_feed_forward_length"), limits::ffn, config.ffn));
    HETERO_TRY(const auto shared, keys.integer(key("expert_shared_count"), 0, limits::experts));
    moe.n_shared = static_cast<std::uint32_t>(shared.value_or(0));
    HETERO_TRY(const auto scale, keys.number(key("expert_weights_scale"), 0, max_scale));
    if (scale.value_or(0) != 0) moe.rule.scale = static_cast<float>(*scale);  // 0 stands for "not set"
    HETERO_TRY(const auto normalized, keys.boolean(key("expert_weights_norm")));
    moe.rule.normalize = normalized.value_or(normalize);
    HETERO_TRY(const auto score, keys.integer(key("expert_gating_func"), 0, 255));
    if (score.value_or(1) != 1 && *score != 2) {
        return fail(Errc::bad_input, "{}: {} is {}; 1 (softmax) and 2 (sigmoid) are implemented", keys.file(),
                    key("expert_gating_func"), *score);
    }
    moe.rule.score = score.value_or(1) == 2 ? RoutingRule::Score::sigmoid : RoutingRule::Score::softmax;
    return moe;
}

Result<Config> read_folder(Keys& keys, const FolderKeys& family) {
    Config config;
    HETERO_TRY(const auto name, keys.text("_name_or_path"));
    config.name = name.value_or("");
    const std::string expected = fmt::format("[\"{}\"]", family.class_name);
    if (const auto classes = keys.compound_text("architectures"); classes && *classes != expected) {
        return fail(Errc::bad_input, "{}: architectures is {}; only {} is implemented", keys.file(), *classes,
                    expected);
    }
    HETERO_CHECK(keys.only_text("model_type", family.model_type));
    HETERO_TRY(config.n_layers, keys.count("num_hidden_layers", limits::layers));
    HETERO_TRY(config.hidden, keys.count("hidden_size", limits::hidden));
    HETERO_TRY(config.ffn, keys.count("intermediate_size", limits::ffn));
    HETERO_TRY(config.context_length, keys.count("max_position_embeddings", limits::context));
    HETERO_TRY(config.vocab_size, keys.count("vocab_size", limits::vocab));
    HETERO_TRY(config.n_heads, keys.count("num_attention_heads", limits::heads));
    if (!family.latent) HETERO_CHECK(folder_heads(keys, family, config));
    HETERO_TRY(const auto eps, keys.number(family.norm_eps_key, 0, 1));
    config.norm_eps = static_cast<float>(eps.value_or(family.norm_eps));
    HETERO_TRY(const auto tied, keys.boolean("tie_word_embeddings"));
    config.tied_embeddings = tied.value_or(family.tied_embeddings);
    // Training, generation defaults, provenance.
    keys.harmless({"attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range",
                   "torch_dtype", "dtype", "transformers_version", "use_cache", "cache_implementation",
                   "transformers.js_config*", "output_attentions", "output_hidden_states", "return_dict", "max_length",
                   "unsloth_fixed", "unsloth_version", "task_specific_params*", "auto_map*"});
    return config;
}

Result<std::optional<double>> agreed_number(Keys& keys, const std::vector<std::string>& names, double low,
                                            double high) {
    std::optional<double> agreed;
    for (const std::string& name : names) {
        HETERO_TRY(const auto value, keys.number(name, low, high));
        if (agreed && value && *agreed != *value) {
            return fail(Errc::bad_input, "{}: {} is {}, but {} is given elsewhere", keys.file(), name, *value, *agreed);
        }
        if (value) agreed = value;
    }
    return agreed;
}

Status read_rope(Keys& keys, RopeConfig& rope, const RopeKeys& names) {
    HETERO_TRY(const auto theta, agreed_number(keys, names.theta_keys, 1, max_theta));
    rope.theta = static_cast<float>(theta.value_or(names.theta));  // as a GGUF holds it
    HETERO_TRY(const auto new_kind, keys.text(names.section + "rope_type"));
    std::optional<std::string> published;
    if (!names.old_section.empty()) {
        HETERO_TRY(const auto old_kind, keys.text(names.old_section + "rope_type"));
        HETERO_TRY(const auto oldest_kind, keys.text(names.old_section + "type"));
        published = old_kind ? old_kind : oldest_kind;
    }
    const bool is_new = new_kind.has_value();
    if (is_new && published && *published != *new_kind) {
        return fail(Errc::bad_input, "{}: rope_parameters and rope_scaling contradict each other: \"{}\" and \"{}\"",
                    keys.file(), *new_kind, *published);
    }
    const std::string& outer = is_new ? names.section : names.old_section;
    const std::string kind = is_new ? *new_kind : published.value_or("default");
    if (kind == "default") return {};
    const bool yarn = kind == "yarn" && names.yarn_context != 0;
    if (kind != "linear" && kind != "llama3" && !yarn) {
        return fail(Errc::bad_input,
                    "{}: {}rope_type is \"{}\"; \"default\", \"linear\"{} and \"llama3\" are implemented", keys.file(),
                    outer, kind, names.yarn_context != 0 ? ", \"yarn\"" : "");
    }
    HETERO_TRY(const auto factor, keys.number(outer + "factor", 1e-6, max_factor));
    if (!factor) return fail(Errc::bad_input, "{}: {}factor is missing", keys.file(), outer);
    rope.factor = static_cast<float>(*factor);
    rope.scaling = RopeScalingKind::linear;
    if (yarn) return folder_yarn(keys, outer, names.yarn_context, rope);
    if (kind == "llama3") {
        rope.scaling = RopeScalingKind::llama3;
        HETERO_TRY(const auto low, keys.number(outer + "low_freq_factor", 1e-6, max_factor));
        HETERO_TRY(const auto high, keys.number(outer + "high_freq_factor", 1e-6, max_factor));
        if (!low || !high) {
            return fail(Errc::bad_input, "{}: {}low_freq_factor and high_freq_factor are needed", keys.file(), outer);
        }
        rope.low_freq_factor = *low;
        rope.high_freq_factor = *high;
        HETERO_TRY(rope.original_context, keys.count(outer + "original_max_position_embeddings", limits::context));
    }
    return {};
}

Status read_partial_rotary(Keys& keys, Config& config, const std::vector<std::string>& names, double factor) {
    HETERO_TRY(const auto given, agreed_number(keys, names, 0, 1));
    const double dims = std::floor(static_cast<double>(config.head_dim) * given.value_or(factor));
    config.rope.rotary_dim = static_cast<std::uint32_t>(dims);
    if (config.rope.rotary_dim == 0) {
        return fail(Errc::bad_input, "{}: {} leaves no dimension of heads of {} to rotate", keys.file(), names.front(),
                    config.head_dim);
    }
    return {};
}

Status read_sliding_layers(Keys& keys, Config& config, const std::function<bool(std::uint32_t)>& usual) {
    constexpr std::string_view sliding = "sliding_attention", full = "full_attention";
    HETERO_TRY(const auto types, keys.texts("layer_types"));
    if (types && types->size() != config.n_layers) {
        return fail(Errc::bad_input, "{}: layer_types has {} entries for {} layers", keys.file(), types->size(),
                    config.n_layers);
    }
    config.sliding.assign(config.n_layers, false);
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
        if (!types) {
            config.sliding[layer] = config.window != 0 && usual(layer);
            continue;
        }
        const std::string& type = (*types)[layer];
        if (type != sliding && type != full) {
            return fail(Errc::bad_input, "{}: layer_types of layer {} is \"{}\"; \"{}\" and \"{}\" are implemented",
                        keys.file(), layer, type.substr(0, 64), sliding, full);
        }
        config.sliding[layer] = type == sliding;
        if (config.sliding[layer] && config.window == 0) {
            return fail(Errc::bad_input, "{}: layer {} is a {} layer, but there is no sliding_window", keys.file(),
                        layer, sliding);
        }
    }
    return {};
}

Status read_upper_sliding_layers(Keys& keys, Config& config) {
    HETERO_TRY(const auto slides, keys.boolean("use_sliding_window"));
    HETERO_TRY(const std::uint32_t window, read_window(keys, 4096));
    HETERO_TRY(const auto full_layers, keys.integer("max_window_layers", 0, limits::layers));
    config.window = slides.value_or(false) ? window : 0;
    return read_sliding_layers(keys, config, [&](std::uint32_t layer) { return layer >= full_layers.value_or(28); });
}

Result<std::uint32_t> read_window(Keys& keys, std::uint32_t fallback) {
    const bool given = keys.has("sliding_window");
    HETERO_TRY(const auto window, keys.integer("sliding_window", 1, limits::context));
    if (window) return static_cast<std::uint32_t>(*window);
    return given ? 0 : fallback;
}

}  // namespace hetero::model
