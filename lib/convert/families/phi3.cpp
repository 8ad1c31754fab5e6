#include <cmath>

#include "convert/family.h"

namespace hetero::convert {
namespace {

Status to_gguf(const model::Config& config, ArchKeys& keys) {
    HETERO_TRY(const std::uint32_t window, window_of_all(config));
    keys.count("attention.sliding_window", window);
    if (window != 0) {
        keys.warn(fmt::format(
            "llama.cpp does not look at the window of {} tokens in a GGUF of phi3: past it its answers are others",
            window));
    }
    return {};
}

Result<Json> to_config(const model::Config& config) {
    HETERO_TRY(const std::uint32_t window, window_of_all(config));
    HETERO_TRY(Json json, describe_config(config, {.class_name = "Phi3ForCausalLM", .model_type = "phi3"}));
    const double dims = config.head_dim;
    double part = config.rope.rotary_dim / dims;  // readers cut dims * part to a whole number
    if (std::floor(dims * part) < config.rope.rotary_dim) part = std::nextafter(part, 2);
    json["partial_rotary_factor"] = part;
    json["original_max_position_embeddings"] = config.context_length;
    json["sliding_window"] = window == 0 ? Json() : Json(window);
    return json;
}

}  // namespace

extern const Conversion phi3_conversion{.arch = "phi3", .to_gguf = &to_gguf, .to_config = &to_config};

}  // namespace hetero::convert
