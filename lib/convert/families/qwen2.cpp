#include "convert/family.h"

namespace hetero::convert {
namespace {

Status to_gguf(const model::Config& config, ArchKeys&) {
    if (any_slides(config)) {
        return fail(Errc::bad_input, "use_sliding_window is true: a GGUF of qwen2 cannot say so");
    }
    return {};
}

Result<Json> to_config(const model::Config& config) {
    HETERO_TRY(Json json, describe_config(config, {.class_name = "Qwen2ForCausalLM", .model_type = "qwen2"}));
    json["use_sliding_window"] = false;
    json["sliding_window"] = nullptr;
    json["max_window_layers"] = config.n_layers;
    return json;
}

}  // namespace

extern const Conversion qwen2_conversion{.arch = "qwen2", .to_gguf = &to_gguf, .to_config = &to_config};

}  // namespace hetero::convert
