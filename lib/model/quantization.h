// How a Hugging Face folder says that its weights are quantized.
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"

namespace hetero::model {

// The quantization_config of a config.json: false where there is none, true for the one kind that is implemented:
// compressed-tensors, int-quantized: int8 weights, symmetric, a scale for each row, as NAME.weight and
// NAME.weight_scale (https://github.com/neuralmagic/compressed-tensors). Activations stay floats here even where it
// asks to round them, token by token, to int8. Every other kind is refused by name. `file` is for messages.
Result<bool> read_quantization(const std::string& file, std::string_view config_text);

inline constexpr std::string_view row_scale_ending = "_scale";
// Of the scales of a matrix's rows.
[[nodiscard]] inline std::string row_scale_name(std::string_view matrix) {
    return std::string(matrix).append(row_scale_ending);
}

}  // namespace hetero::model
