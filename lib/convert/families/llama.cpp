// Llama, and Mistral, which is one with a window.
#include "convert/family.h"

namespace hetero::convert {
namespace {

Status to_gguf(const model::Config& config, ArchKeys& keys) { return describe_llama_window(config, keys); }

Result<Json> to_config(const model::Config& config) {
    HETERO_TRY(const std::uint32_t window, window_of_all(config));
    if (window == 0) {
        HETERO_TRY(Json json, describe_config(
                                  config, {.class_name = "LlamaForCausalLM", .model_type = "llama", .head_dim = true}));
        json["attention_bias"] = false;
        json["mlp_bias"] = false;
        return json;
    }
    HETERO_TRY(Json json, describe_config(
                              config, {.class_name = "MistralForCausalLM", .model_type = "mistral", .head_dim = true}));
    json["sliding_window"] = window;
    return json;
}

}  // namespace

extern const Conversion llama_conversion{
    .arch = "llama", .to_gguf = &to_gguf, .to_config = &to_config, .interleaved = true, .rope_divisors = true};

}  // namespace hetero::convert
