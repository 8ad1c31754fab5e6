// The config.json of a converted folder: what says how its weights are stored.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "convert/plan.h"
#include "convert/types.h"

namespace hetero::convert {

// `text` with the float type of the weights, and with a quantization_config where there are row scales: compressed-
// tensors, format int-quantized, so that runtimes that know it load the folder. They then round activations to int8
// token by token as well, as that format has it; the matrices without scales are listed as ignored. Otherwise the keys
// and their order stay.
Result<std::string> converted_config(const std::string& text, const Plan& plan, const std::vector<Choice>& choices);

}  // namespace hetero::convert
