// The two JSON texts of safetensors, parsed as a stream: memory is taken for what the format defines and for nothing
// else, and a key that is there twice is seen.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hetero::io {

struct HeaderTensor {
    std::string name;
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin = 0, end = 0;  // bytes, from the start of the data
};

// `path` is for messages. Ranges are not checked here.
Result<std::vector<HeaderTensor>> parse_safetensors_header(std::string_view json, const std::string& path);

using WeightMap = std::map<std::string, std::string>;  // tensor -> file name, without any folder

// model.safetensors.index.json. File names that lead out of the folder are refused.
Result<WeightMap> parse_safetensors_index(std::string_view json, const std::string& path);

}  // namespace hetero::io
