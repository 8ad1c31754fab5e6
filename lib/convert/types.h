// In which type each tensor of the output is stored: the rules, and the user's exceptions.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "convert/plan.h"
#include "io/tensor_source.h"
#include "quant/weights/weight_format.h"

namespace hetero::convert {

struct Keep {
    std::string pattern;  // shell wildcard on names of the output
    const quant::WeightFormat* format = nullptr;
};
// "PATTERN=TYPE". usage: no '=', an unknown type.
Result<Keep> parse_keep(std::string_view text);

struct Choice {
    const quant::WeightFormat* format = nullptr;
    std::string reason;  // why it is not the type that was asked for; empty where it is
};

// Of each tensor of the plan. The last exception whose pattern fits wins; without one:
// - norms, biases, routers of experts and all vectors are f32 in a GGUF, and keep their type in a folder;
// - with a 4-bit type the output matrix, or the token embedding where it is the output matrix too, is q8_0;
// - with int8-channel the embedding and the output matrix keep their type: row scales are for what runtimes know as
//   Linear, and the output matrix they leave out;
// - rows that are not whole blocks are q8_0, or else f16.
// What keeps a type that a folder does not have (it comes from a GGUF) becomes f16.
// Errors: usage (a pattern that fits no tensor: the nearest name is given; a type that the container does not have, or
// that an exception asks for where it cannot be), and those of finding the tensors in `source`.
Result<std::vector<Choice>> choose_types(const Plan& plan, const io::TensorSource& source, Target target,
                                         const quant::WeightFormat& asked, const std::vector<Keep>& keep);

// usage where the container does not have the type, with what to do.
Status check_type(const quant::WeightFormat& format, Target target);

// The roles of tensors, by their names in either container.
[[nodiscard]] bool is_embedding(std::string_view name);
[[nodiscard]] bool is_output(std::string_view name);
[[nodiscard]] bool is_router(std::string_view name);

}  // namespace hetero::convert
