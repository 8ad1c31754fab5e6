#include "convert/family.h"

namespace hetero::convert {
namespace {

Status to_gguf(const model::Config& config, ArchKeys& keys) { return describe_llama_window(config, keys); }

Result<Json> to_config(const model::Config& config) {
    HETERO_TRY(const std::uint32_t window, window_of_all(config));
    HETERO_TRY(Json json, describe_config(
                              config, {.class_name = "MixtralForCausalLM", .model_type = "mixtral", .head_dim = true}));
    json["intermediate_size"] = config.moe->expert_ffn;
    json["num_local_experts"] = config.moe->n_experts;
    json["num_experts_per_tok"] = config.moe->rule.top_k;
    json["sliding_window"] = window == 0 ? Json() : Json(window);
    return json;
}

}  // namespace

extern const Conversion mixtral_conversion{
    .arch = "mixtral", .to_gguf = &to_gguf, .to_config = &to_config, .interleaved = true, .rope_divisors = true};

}  // namespace hetero::convert
