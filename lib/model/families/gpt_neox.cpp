// GPT-NeoX (https://arxiv.org/abs/2204.06745; Pythia is of this family): LayerNorm, biases everywhere, attention and
// FFN in parallel on the residual, RoPE over a part of each head, an ungated FFN with GELU.
#include "model/families/shared.h"

namespace hetero::model {
namespace {

Result<Config> config_from_gguf(Keys& keys) {
    HETERO_TRY(Config config, read_gguf(keys, {.arch = "gptneox", .norm_eps = "attention.layer_norm_epsilon"}));
    HETERO_TRY(const auto parallel, keys.boolean("gptneox.use_parallel_residual"));
    config.parallel_residual = parallel.value_or(true);
    config.attention_bias = true;
    config.activation = Activation::gelu_erf;  // a GGUF does not say which GELU; this is Pythia's, and the usual one
    HETERO_CHECK(keys.refuse_unread("gptneox."));
    return config;
}

Result<Activation> activation_of(Keys& keys) {
    HETERO_TRY(const auto name, keys.text("hidden_act"));
    if (!name || *name == "gelu") return Activation::gelu_erf;
    if (*name == "gelu_fast" || *name == "gelu_new" || *name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
    return fail(Errc::bad_input,
                "{}: hidden_act is \"{}\"; \"gelu\", \"gelu_fast\", \"gelu_new\" and \"gelu_pytorch_tanh\" are "
                "implemented",
                keys.file(), name->substr(0, 64));
}

Result<Config> config_from_folder(Keys& keys) {
    HETERO_TRY(Config config, read_folder(keys, {.class_name = "GPTNeoXForCausalLM",
                                                 .model_type = "gpt_neox",
                                                 .norm_eps_key = "layer_norm_eps",
                                                 .norm_eps = 1e-5}));
    // All heads have keys and values of their own, as wide as the hidden size allows.
    HETERO_CHECK(keys.only_number("num_key_value_heads", static_cast<double>(config.n_heads)));
    HETERO_CHECK(keys.only_number("head_dim", static_cast<double>(config.hidden) / config.n_heads));
    HETERO_CHECK(
        read_rope(keys, config.rope, {.theta_keys = {"rotary_emb_base", "rope_theta", "rope_parameters.rope_theta"}}));
    HETERO_CHECK(read_partial_rotary(
        keys, config, {"rotary_pct", "partial_rotary_factor", "rope_parameters.partial_rotary_factor"}, 0.25));
    HETERO_TRY(config.activation, activation_of(keys));
    HETERO_TRY(const auto bias, keys.boolean("attention_bias"));
    config.attention_bias = bias.value_or(true);
    HETERO_TRY(const auto parallel, keys.boolean("use_parallel_residual"));
    config.parallel_residual = parallel.value_or(true);
    keys.harmless(
        {"is_decoder", "classifier_dropout", "hidden_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob"});
    HETERO_CHECK(keys.refuse_unread(""));
    return config;
}

Result<Config> read_config(Keys& keys, Container container) {
    HETERO_TRY(Config config, container == Container::gguf ? config_from_gguf(keys) : config_from_folder(keys));
    config.arch = "gpt_neox";
    HETERO_CHECK(check_heads(keys.file(), config));
    return config;
}

// Every tensor has a ".weight", and nearly all a ".bias" too: these are the names before that.
Decoder decoder(Container container) {
    DecoderNames stems;
    if (container == Container::gguf) {
        stems.embedding = "token_embd";
        stems.final_norm = "output_norm";
        stems.head = "output";
        stems.layer = "blk.{}.";
        stems.attn_norm = "attn_norm";
        stems.qkv = "attn_qkv";
        stems.o = "attn_output";
        stems.ffn_norm = "ffn_norm";
        stems.up = "ffn_up";
        stems.down = "ffn_down";
    } else {
        stems.embedding = "gpt_neox.embed_in";
        stems.final_norm = "gpt_neox.final_layer_norm";
        stems.head = "embed_out";
        stems.layer = "gpt_neox.layers.{}.";
        stems.attn_norm = "input_layernorm";
        stems.qkv = "attention.query_key_value";
        stems.o = "attention.dense";
        stems.ffn_norm = "post_attention_layernorm";
        stems.up = "mlp.dense_h_to_4h";
        stems.down = "mlp.dense_4h_to_h";
    }
    return {stems};
}

Result<Norm> take_norm(const Config& config, WeightReader& weights, const std::string& name) {
    Norm norm;
    norm.kind = Norm::Kind::layer;
    norm.eps = config.norm_eps;
    HETERO_TRY(norm.weight, weights.vector(name + ".weight", config.hidden));
    HETERO_TRY(norm.bias, weights.vector(name + ".bias", config.hidden));
    return norm;
}

Result<Matrix> take_matrix(WeightReader& weights, const std::string& name, std::uint64_t rows, std::uint64_t cols,
                           bool bias) {
    if (!bias) return weights.matrix(name + ".weight", rows, cols);
    return weights.matrix(name + ".weight", name + ".bias", rows, cols);
}

Result<Program> build(Config& config, WeightReader& weights, Container container) {
    const bool gguf = container == Container::gguf;
    if (gguf) HETERO_CHECK(complete_from_gguf(config, weights));
    const DecoderNames stems = decoder(container).names;
    const std::uint32_t width = config.n_heads * config.head_dim;

    Program program;
    program.ropes = {config.rope};
    program.kv.assign(config.n_layers, KvLayout{config.n_kv_heads, config.head_dim, config.head_dim});
    const Register x = program.add_register("residual", config.hidden);
    const Register h = program.add_register("normed", config.hidden);
    const Register f = program.add_register("normed for FFN", config.hidden);
    const Register q = program.add_register("query", width);
    const Register a = program.add_register("attended", width);

    HETERO_TRY(Matrix embedding,
               weights.matrix(std::string(stems.embedding) + ".weight", config.vocab_size, config.hidden));
    program.ops.emplace_back(Embed{embedding, x});
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const std::string prefix = fmt::format(fmt::runtime(stems.layer), layer);
        const auto name = [&prefix](std::string_view tensor) { return prefix + std::string(tensor); };
        HETERO_TRY(Norm attn_norm, take_norm(config, weights, name(stems.attn_norm)));
        HETERO_TRY(Norm ffn_norm, take_norm(config, weights, name(stems.ffn_norm)));
        HETERO_TRY(const Matrix fused, take_matrix(weights, name(stems.qkv), 3 * std::uint64_t{width}, config.hidden,
                                                   config.attention_bias));
        Qkv qkv;
        qkv.layer = layer;
        qkv.n_heads = config.n_heads;
        qkv.in = h;
        qkv.q_out = q;
        Matrix* const parts[] = {&qkv.q, &qkv.k, &qkv.v};
        for (std::uint32_t part = 0; part < 3; ++part) {
            // A checkpoint has Q, K and V of one head after another; a GGUF those of all heads.
            *parts[part] = gguf ? row_view(fused, std::uint64_t{part} * width, width)
                                : row_view(fused, std::uint64_t{part} * config.head_dim, config.head_dim,
                                           config.n_heads, 3 * std::uint64_t{config.head_dim});
        }
        ProjectAdd project{{}, a, x, {}};
        HETERO_TRY(project.weight, take_matrix(weights, name(stems.o), config.hidden, width, config.attention_bias));
        FfnAdd ffn;
        ffn.in = f;
        ffn.out = x;
        ffn.activation = config.activation;
        HETERO_TRY(ffn.up, take_matrix(weights, name(stems.up), config.ffn, config.hidden, true));
        HETERO_TRY(ffn.down, take_matrix(weights, name(stems.down), config.hidden, config.ffn, true));

        program.ops.emplace_back(Normalize{std::move(attn_norm), x, h});
        // In parallel both norms see the residual before either addition.
        if (config.parallel_residual) program.ops.emplace_back(Normalize{ffn_norm, x, f});
        program.ops.emplace_back(std::move(qkv));
        program.ops.emplace_back(Attention{layer, config.n_heads, attention_scale(config), q, a});
        program.ops.emplace_back(std::move(project));
        if (!config.parallel_residual) program.ops.emplace_back(Normalize{std::move(ffn_norm), x, f});
        program.ops.emplace_back(std::move(ffn));
    }
    Head head;
    head.in = x;
    HETERO_TRY(head.norm, take_norm(config, weights, std::string(stems.final_norm)));
    const std::string head_name = std::string(stems.head) + ".weight";
    if (config.tied_embeddings) {
        head.weight = std::move(embedding);
    } else {
        HETERO_TRY(head.weight, weights.matrix(head_name, config.vocab_size, config.hidden));
    }
    program.ops.emplace_back(std::move(head));
    // Checkpoints may carry what is derived: RoPE frequencies and causal masks; tied, the head a second time.
    std::vector<std::string_view> harmless = {"rotary_emb.inv_freq", "attention.bias", "attention.masked_bias"};
    if (config.tied_embeddings) harmless.push_back(head_name);
    HETERO_CHECK(weights.refuse_unused(harmless));
    return program;
}

}  // namespace

extern const Family gpt_neox_family{"gpt_neox", "gptneox", "gpt_neox", &read_config, &decoder, nullptr, &build};

}  // namespace hetero::model
