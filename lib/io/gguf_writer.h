// Writes GGUF v3: metadata first, then tensors, streamed in order. Published whole or not at all (atomic_file.h).
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"

namespace hetero::io {

// A metadata value with the very type that readers of GGUF expect of its key.
using GgufMetaValue = std::variant<std::uint32_t, std::int32_t, std::uint64_t, std::int64_t, float, double, bool,
                                   std::string, std::vector<std::uint32_t>, std::vector<std::int32_t>,
                                   std::vector<float>, std::vector<bool>, std::vector<std::string>>;

}  // namespace hetero::io
