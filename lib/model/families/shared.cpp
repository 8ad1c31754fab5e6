#include "model/families/shared.h"

namespace hetero::model {
namespace {

constexpr double max_scale = 1e6;

Result<std::uint32_t> hidden_per_head(const Keys& keys, const Config& config) {
    if (config.hidden % config.n_heads != 0) {
        return fail(Errc::bad_input, "{}: hidden size {} is not a multiple of {} heads, and no head size is given",
                    keys.file(), config.hidden, config.n_heads);
    }
    return config.hidden / config.n_heads;
}

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

}  // namespace

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
