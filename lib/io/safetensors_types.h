// The element types of safetensors: names, sizes, and what hetero calls them.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/api/dtype.h"

namespace hetero::io {

struct SafetensorsType {
    std::string_view name;
    std::uint32_t bits;
    std::optional<kernels::DType> dtype;  // none: hetero cannot compute with it
};

// nullptr for names that the format does not define.
[[nodiscard]] const SafetensorsType* safetensors_type(std::string_view name) noexcept;
// nullopt for types that safetensors does not have.
[[nodiscard]] std::optional<std::string_view> safetensors_name(kernels::DType dtype) noexcept;

}  // namespace hetero::io
