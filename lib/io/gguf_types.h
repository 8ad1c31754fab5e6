// ggml's tensor types: numbers, names and block sizes, from enum ggml_type and the block structs of
// https://github.com/ggml-org/ggml (ggml.h, ggml-common.h).
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/api/dtype.h"

namespace hetero::io {

struct GgmlType {
    std::uint32_t id;
    std::string_view name;
    std::uint32_t block_elems;
    std::uint32_t block_bytes;
    std::optional<kernels::DType> dtype;  // none: hetero cannot compute with it
};

// nullptr for numbers that ggml does not define, or no longer does.
[[nodiscard]] const GgmlType* ggml_type(std::uint32_t id) noexcept;
// nullptr for types that ggml does not have.
[[nodiscard]] const GgmlType* ggml_type(kernels::DType dtype) noexcept;

}  // namespace hetero::io
