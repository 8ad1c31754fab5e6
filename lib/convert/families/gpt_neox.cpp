#include <cmath>

#include "convert/family.h"
#include "convert/tensors.h"

namespace hetero::convert {
namespace {

Status to_gguf(const model::Config& config, ArchKeys& keys) {
    if (config.activation != model::Activation::gelu_erf) {
        return fail(Errc::bad_input,
                    "hidden_act is a GELU by tanh: a GGUF of gptneox does not say which it has, and is "
                    "read as one by erf");
    }
    if (!config.attention_bias) {
        return fail(Errc::bad_input, "attention_bias is false: a GGUF of gptneox always has those biases");
    }
    keys.flag("use_parallel_residual", config.parallel_residual);
    return {};
}

Result<Json> to_config(const model::Config& config) {
    HETERO_TRY(Json json, describe_config(config, {.class_name = "GPTNeoXForCausalLM",
                                                   .model_type = "gpt_neox",
                                                   .norm_eps = "layer_norm_eps",
                                                   .activation = "gelu"}));
    for (const char* key : {"num_key_value_heads", "rope_theta"}) json.erase(key);
    const double dims = config.head_dim;
    double part = config.rope.rotary_dim / dims;  // readers cut dims * part to a whole number
    if (std::floor(dims * part) < config.rope.rotary_dim) part = std::nextafter(part, 2);
    json["rotary_pct"] = part;
    json["rotary_emb_base"] = config.rope.theta;
    json["use_parallel_residual"] = config.parallel_residual;
    json["attention_bias"] = true;
    return json;
}

// A folder has Q, K and V of one head after another, a GGUF those of all heads.
std::vector<Piece> apart(const std::string& source, const model::Config& config, std::uint64_t cols) {
    std::vector<Piece> pieces;
    for (std::uint64_t part = 0; part < 3; ++part) {
        for (std::uint64_t head = 0; head < config.n_heads; ++head) {
            Piece piece;
            piece.source = source;
            piece.first_row = (head * 3 + part) * config.head_dim;
            piece.rows = config.head_dim;
            piece.cols = cols;
            pieces.push_back(std::move(piece));
        }
    }
    return pieces;
}

std::vector<TensorPlan> tensors(const model::Config& config, const model::Family& family) {
    const model::DecoderNames from = family.decoder(model::Container::folder).names;
    const model::DecoderNames to = family.decoder(model::Container::gguf).names;
    const std::uint64_t hidden = config.hidden, ffn = config.ffn, width = config.n_heads * config.head_dim;
    std::vector<TensorPlan> plans;
    const auto matrix = [&](const std::string& target, const std::string& source, std::uint64_t rows,
                            std::uint64_t cols, bool bias = true) {
        plans.push_back(renamed(target + ".weight", source + ".weight", rows, cols));
        plans.back().quantizable = true;
        if (bias) plans.push_back(renamed(target + ".bias", source + ".bias", 0, rows));
    };
    const auto norm = [&](const std::string& target, const std::string& source) {
        for (const char* part : {".weight", ".bias"}) plans.push_back(renamed(target + part, source + part, 0, hidden));
    };
    matrix(std::string(to.embedding), std::string(from.embedding), config.vocab_size, hidden, false);
    norm(std::string(to.final_norm), std::string(from.final_norm));
    // llama.cpp wants a head of its own here.
    matrix(std::string(to.head), std::string(config.tied_embeddings ? from.embedding : from.head), config.vocab_size,
           hidden, false);
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const std::string target = fmt::format(fmt::runtime(to.layer), layer);
        const std::string source = fmt::format(fmt::runtime(from.layer), layer);
        using Name = std::string_view model::DecoderNames::*;
        const auto both = [&](Name name, auto&& add, auto... sizes) {
            add(target + std::string(to.*name), source + std::string(from.*name), sizes...);
        };
        both(&model::DecoderNames::attn_norm, norm);
        both(&model::DecoderNames::qkv, matrix, 3 * width, hidden, true);
        plans[plans.size() - 2].pieces = apart(plans[plans.size() - 2].pieces[0].source, config, hidden);
        plans.back().pieces = apart(plans.back().pieces[0].source, config, 1);
        both(&model::DecoderNames::o, matrix, hidden, width, true);
        both(&model::DecoderNames::ffn_norm, norm);
        both(&model::DecoderNames::up, matrix, ffn, hidden, true);
        both(&model::DecoderNames::down, matrix, hidden, ffn, true);
    }
    return plans;
}

}  // namespace

extern const Conversion gpt_neox_conversion{.arch = "gpt_neox",
                                            .to_gguf = &to_gguf,
                                            .to_config = &to_config,
                                            .norm_eps_key = "attention.layer_norm_epsilon",
                                            .tensors = &tensors};

}  // namespace hetero::convert
