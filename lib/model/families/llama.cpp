// Llama (https://arxiv.org/abs/2302.13971, GQA as in https://arxiv.org/abs/2307.09288): pre-norm RMSNorm, RoPE,
// grouped-query attention, SiLU-gated FFN, no biases. Llama 2 and 3, SmolLM, TinyLlama and others are of this family.
#include <cmath>

#include "model/families/family.h"

namespace hetero::model {
namespace {

constexpr double max_factor = 1e6;
constexpr double max_theta = 1e12;

struct TensorNames {
    std::string_view embedding, final_norm, head, layer;  // `layer` takes the layer's number
    std::string_view attn_norm, q, k, v, o, ffn_norm, gate, up, down;
};
constexpr TensorNames gguf_names{"token_embd.weight",  "output_norm.weight", "output.weight",   "blk.{}.",
                                 "attn_norm.weight",   "attn_q.weight",      "attn_k.weight",   "attn_v.weight",
                                 "attn_output.weight", "ffn_norm.weight",    "ffn_gate.weight", "ffn_up.weight",
                                 "ffn_down.weight"};
constexpr TensorNames folder_names{"model.embed_tokens.weight",
                                   "model.norm.weight",
                                   "lm_head.weight",
                                   "model.layers.{}.",
                                   "input_layernorm.weight",
                                   "self_attn.q_proj.weight",
                                   "self_attn.k_proj.weight",
                                   "self_attn.v_proj.weight",
                                   "self_attn.o_proj.weight",
                                   "post_attention_layernorm.weight",
                                   "mlp.gate_proj.weight",
                                   "mlp.up_proj.weight",
                                   "mlp.down_proj.weight"};

Result<std::uint32_t> hidden_per_head(const Keys& keys, const Config& config) {
    if (config.hidden % config.n_heads != 0) {
        return fail(Errc::bad_input, "{}: hidden size {} is not a multiple of {} heads, and no head size is given",
                    keys.file(), config.hidden, config.n_heads);
    }
    return config.hidden / config.n_heads;
}

// GGUF metadata: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
Result<Config> config_from_gguf(Keys& keys) {
    Config config;
    HETERO_TRY(const auto name, keys.text("general.name"));
    config.name = name.value_or("");
    HETERO_TRY(config.n_layers, keys.count("llama.block_count", limits::layers));
    HETERO_TRY(config.hidden, keys.count("llama.embedding_length", limits::hidden));
    HETERO_TRY(config.ffn, keys.count("llama.feed_forward_length", limits::ffn));
    HETERO_TRY(config.context_length, keys.count("llama.context_length", limits::context));
    HETERO_TRY(config.n_heads, keys.count("llama.attention.head_count", limits::heads));
    HETERO_TRY(config.n_kv_heads, keys.count("llama.attention.head_count_kv", limits::heads, config.n_heads));
    HETERO_TRY(const auto vocab, keys.integer("llama.vocab_size", 1, limits::vocab));
    config.vocab_size = static_cast<std::uint32_t>(vocab.value_or(0));  // 0: as the embedding has rows
    HETERO_TRY(const auto key_length, keys.integer("llama.attention.key_length", 1, limits::head_dim));
    if (key_length) {
        config.head_dim = static_cast<std::uint32_t>(*key_length);
    } else {
        HETERO_TRY(config.head_dim, hidden_per_head(keys, config));
    }
    HETERO_CHECK(keys.only_number("llama.attention.value_length", static_cast<double>(config.head_dim)));
    HETERO_TRY(const auto eps, keys.number("llama.attention.layer_norm_rms_epsilon", 0, 1));
    if (!eps) return fail(Errc::bad_input, "{}: llama.attention.layer_norm_rms_epsilon is missing", keys.file());
    config.norm_eps = static_cast<float>(*eps);

    RopeConfig& rope = config.rope;
    rope.pairing = kernels::RopePairing::interleaved;
    HETERO_TRY(rope.rotary_dim, keys.count("llama.rope.dimension_count", limits::head_dim, config.head_dim));
    HETERO_TRY(const auto theta, keys.number("llama.rope.freq_base", 1, max_theta));
    rope.theta = theta.value_or(10000);
    HETERO_TRY(const auto kind, keys.text("llama.rope.scaling.type"));
    if (kind && *kind != "none" && *kind != "linear") {
        return fail(Errc::bad_input, "{}: llama.rope.scaling.type is \"{}\"; \"none\" and \"linear\" are implemented",
                    keys.file(), *kind);
    }
    HETERO_TRY(const auto factor, keys.number("llama.rope.scaling.factor", 0, max_factor));
    HETERO_TRY(const auto old_factor, keys.number("llama.rope.scale_linear", 0, max_factor));
    const double stretch = factor.value_or(old_factor.value_or(1));
    if (kind.value_or("linear") == "linear" && stretch != 0 && stretch != 1) {  // 0 stands for "not set"
        rope.scaling = RopeScalingKind::linear;
        rope.factor = stretch;
    }
    HETERO_CHECK(keys.only_number("llama.rope.scaling.attn_factor", 1.0));
    HETERO_CHECK(keys.only_number("llama.expert_count", 0.0));
    HETERO_CHECK(keys.only_number("llama.expert_used_count", 0.0));
    HETERO_CHECK(keys.only_number("llama.attention.sliding_window", 0.0));
    HETERO_CHECK(keys.only_flag("llama.attention.causal", true));
    HETERO_CHECK(keys.only_flag("llama.use_parallel_residual", false));
    HETERO_CHECK(keys.only_text("general.type", "model"));
    HETERO_TRY(const auto parts, keys.integer("split.count", 0, 1 << 20));
    if (parts.value_or(1) > 1) {
        return fail(Errc::bad_input, "{}: is one of {} parts of a split GGUF; join them with llama-gguf-split --merge",
                    keys.file(), *parts);
    }
    keys.harmless(
        {"llama.rope.scaling.original_context_length", "llama.rope.scaling.finetuned", "llama.tensor_data_layout"});
    HETERO_CHECK(keys.refuse_unread("llama."));
    return config;
}

// The RoPE keys of a config.json: `rope_parameters` as transformers 5 writes it, else `rope_theta` and `rope_scaling`.
Status folder_rope(Keys& keys, Config& config) {
    RopeConfig& rope = config.rope;
    rope.pairing = kernels::RopePairing::half_split;
    rope.rotary_dim = config.head_dim;
    std::optional<double> theta;
    for (const std::string_view key : {"rope_theta", "rope_parameters.rope_theta", "rope_scaling.rope_theta"}) {
        HETERO_TRY(const auto value, keys.number(key, 1, max_theta));
        if (theta && value && *theta != *value) {
            return fail(Errc::bad_input, "{}: {} is {}, but the RoPE base is given as {} elsewhere", keys.file(), key,
                        *value, *theta);
        }
        if (value) theta = value;
    }
    rope.theta = theta.value_or(10000);
    HETERO_TRY(const auto old_kind, keys.text("rope_scaling.rope_type"));
    HETERO_TRY(const auto oldest_kind, keys.text("rope_scaling.type"));
    HETERO_TRY(const auto new_kind, keys.text("rope_parameters.rope_type"));
    const bool is_new = new_kind.has_value();
    const std::optional<std::string> published = old_kind ? old_kind : oldest_kind;
    if (is_new && published && *published != *new_kind) {
        return fail(Errc::bad_input, "{}: rope_parameters and rope_scaling contradict each other: \"{}\" and \"{}\"",
                    keys.file(), *new_kind, *published);
    }
    const std::string outer = is_new ? "rope_parameters." : "rope_scaling.";
    const std::string kind = is_new ? *new_kind : published.value_or("default");
    if (kind == "default") return {};
    if (kind != "linear" && kind != "llama3") {
        return fail(Errc::bad_input,
                    "{}: {}rope_type is \"{}\"; \"default\", \"linear\" and \"llama3\" are implemented", keys.file(),
                    outer, kind);
    }
    HETERO_TRY(const auto factor, keys.number(outer + "factor", 1e-6, max_factor));
    if (!factor) return fail(Errc::bad_input, "{}: {}factor is missing", keys.file(), outer);
    rope.factor = *factor;
    rope.scaling = RopeScalingKind::linear;
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

// config.json as LlamaConfig reads it; its defaults hold where a key is missing.
Result<Config> config_from_folder(Keys& keys) {
    Config config;
    HETERO_TRY(const auto name, keys.text("_name_or_path"));
    config.name = name.value_or("");
    if (const auto classes = keys.compound_text("architectures"); classes && *classes != "[\"LlamaForCausalLM\"]") {
        return fail(Errc::bad_input, "{}: architectures is {}; only [\"LlamaForCausalLM\"] is implemented", keys.file(),
                    *classes);
    }
    HETERO_TRY(config.n_layers, keys.count("num_hidden_layers", limits::layers));
    HETERO_TRY(config.hidden, keys.count("hidden_size", limits::hidden));
    HETERO_TRY(config.ffn, keys.count("intermediate_size", limits::ffn));
    HETERO_TRY(config.context_length, keys.count("max_position_embeddings", limits::context));
    HETERO_TRY(config.vocab_size, keys.count("vocab_size", limits::vocab));
    HETERO_TRY(config.n_heads, keys.count("num_attention_heads", limits::heads));
    HETERO_TRY(config.n_kv_heads, keys.count("num_key_value_heads", limits::heads, config.n_heads));
    HETERO_TRY(const auto head_dim, keys.integer("head_dim", 1, limits::head_dim));
    if (head_dim) {
        config.head_dim = static_cast<std::uint32_t>(*head_dim);
    } else {
        HETERO_TRY(config.head_dim, hidden_per_head(keys, config));
    }
    HETERO_TRY(const auto eps, keys.number("rms_norm_eps", 0, 1));
    config.norm_eps = static_cast<float>(eps.value_or(1e-6));
    HETERO_TRY(const auto tied, keys.boolean("tie_word_embeddings"));
    config.tied_embeddings = tied.value_or(false);
    HETERO_CHECK(folder_rope(keys, config));

    HETERO_CHECK(keys.only_text("hidden_act", "silu"));
    HETERO_CHECK(keys.only_flag("attention_bias", false));
    HETERO_CHECK(keys.only_flag("mlp_bias", false));
    HETERO_CHECK(keys.only_flag("rope_interleaved", false));
    HETERO_CHECK(keys.only_number("partial_rotary_factor", 1.0));
    HETERO_CHECK(keys.only_number("rope_parameters.partial_rotary_factor", 1.0));
    HETERO_CHECK(keys.only_text("model_type", "llama"));
    // Training, generation defaults, provenance; pretraining_tp slices the same products.
    keys.harmless({"attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range",
                   "pretraining_tp", "torch_dtype", "dtype", "transformers_version", "use_cache",
                   "transformers.js_config*", "output_attentions", "output_hidden_states", "return_dict", "max_length",
                   "unsloth_fixed", "unsloth_version", "is_llama_config", "task_specific_params*"});
    HETERO_CHECK(keys.refuse_unread(""));
    return config;
}

Result<Config> read_config(Keys& keys, Container container) {
    HETERO_TRY(Config config, container == Container::gguf ? config_from_gguf(keys) : config_from_folder(keys));
    config.arch = "llama";
    HETERO_CHECK(check_heads(keys.file(), config));
    return config;
}

// What only the tensors of a GGUF tell: the vocabulary, tied embeddings, and how frequencies are divided.
Status complete_from_gguf(Config& config, WeightReader& weights) {
    if (config.vocab_size == 0) {
        HETERO_TRY(config.vocab_size, weights.rows_of(std::string(gguf_names.embedding), limits::vocab));
    }
    config.tied_embeddings = !weights.has(gguf_names.head);
    if (weights.has("rope_freqs.weight")) {
        HETERO_TRY(Vector divisors, weights.vector("rope_freqs.weight", config.rope.rotary_dim / 2));
        for (const float divisor : divisors.values) {
            if (!(divisor > 0 && std::isfinite(divisor))) {
                return fail(Errc::bad_input, "{}: tensor rope_freqs.weight holds {}; frequencies are divided by it",
                            weights.path(), divisor);
            }
        }
        config.rope.frequency_divisors = std::move(divisors.values);
    }
    return {};
}

Result<Program> build(Config& config, WeightReader& weights, Container container) {
    if (container == Container::gguf) HETERO_CHECK(complete_from_gguf(config, weights));
    const TensorNames& names = container == Container::gguf ? gguf_names : folder_names;
    const std::uint32_t q_width = config.n_heads * config.head_dim, kv_width = config.n_kv_heads * config.head_dim;

    Program program;
    program.ropes = {config.rope};
    program.kv.assign(config.n_layers, KvLayout{config.n_kv_heads, config.head_dim, config.head_dim});
    const Register x = program.add_register("residual", config.hidden);
    const Register h = program.add_register("normed", config.hidden);
    const Register q = program.add_register("query", q_width);
    const Register a = program.add_register("attended", q_width);

    HETERO_TRY(Matrix embedding, weights.matrix(std::string(names.embedding), config.vocab_size, config.hidden));
    program.ops.emplace_back(Embed{embedding, x});
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const std::string prefix = fmt::format(fmt::runtime(names.layer), layer);
        const auto name = [&prefix](std::string_view tensor) { return prefix + std::string(tensor); };
        HETERO_TRY(Vector attn_norm, weights.vector(name(names.attn_norm), config.hidden));
        program.ops.emplace_back(RmsNorm{std::move(attn_norm), config.norm_eps, x, h});
        Qkv qkv{{}, {}, {}, layer, config.n_heads, 0, h, q};
        HETERO_TRY(qkv.q, weights.matrix(name(names.q), q_width, config.hidden));
        HETERO_TRY(qkv.k, weights.matrix(name(names.k), kv_width, config.hidden));
        HETERO_TRY(qkv.v, weights.matrix(name(names.v), kv_width, config.hidden));
        program.ops.emplace_back(std::move(qkv));
        program.ops.emplace_back(
            Attention{layer, config.n_heads, 1 / std::sqrt(static_cast<float>(config.head_dim)), q, a});
        HETERO_TRY(Matrix o, weights.matrix(name(names.o), config.hidden, q_width));
        program.ops.emplace_back(ProjectAdd{std::move(o), a, x});
        HETERO_TRY(Vector ffn_norm, weights.vector(name(names.ffn_norm), config.hidden));
        program.ops.emplace_back(RmsNorm{std::move(ffn_norm), config.norm_eps, x, h});
        GatedFfnAdd ffn{{}, {}, {}, h, x};
        HETERO_TRY(ffn.gate, weights.matrix(name(names.gate), config.ffn, config.hidden));
        HETERO_TRY(ffn.up, weights.matrix(name(names.up), config.ffn, config.hidden));
        HETERO_TRY(ffn.down, weights.matrix(name(names.down), config.hidden, config.ffn));
        program.ops.emplace_back(std::move(ffn));
    }
    Head head{{}, config.norm_eps, {}, x};
    HETERO_TRY(head.norm_weight, weights.vector(std::string(names.final_norm), config.hidden));
    if (config.tied_embeddings) {
        head.weight = std::move(embedding);
    } else {
        HETERO_TRY(head.weight, weights.matrix(std::string(names.head), config.vocab_size, config.hidden));
    }
    program.ops.emplace_back(std::move(head));
    // Checkpoints may carry what is derived (RoPE frequencies) or, tied, the head a second time.
    std::vector<std::string_view> harmless = {"rotary_emb.inv_freq"};
    if (config.tied_embeddings) harmless.push_back(names.head);
    HETERO_CHECK(weights.refuse_unused(harmless));
    return program;
}

}  // namespace

const Family llama_family{"llama", "llama", "llama", &read_config, &build};

}  // namespace hetero::model
