#include "io/safetensors_types.h"

#include <algorithm>
#include <array>

namespace hetero::io {
namespace {

using kernels::DType;

constexpr std::array types{
    SafetensorsType{"F64", 64, std::nullopt},    SafetensorsType{"F32", 32, DType::f32},
    SafetensorsType{"F16", 16, DType::f16},      SafetensorsType{"BF16", 16, DType::bf16},
    SafetensorsType{"I64", 64, std::nullopt},    SafetensorsType{"I32", 32, DType::i32},
    SafetensorsType{"I16", 16, std::nullopt},    SafetensorsType{"I8", 8, DType::i8},
    SafetensorsType{"U64", 64, std::nullopt},    SafetensorsType{"U32", 32, std::nullopt},
    SafetensorsType{"U16", 16, std::nullopt},    SafetensorsType{"U8", 8, DType::u8},
    SafetensorsType{"BOOL", 8, std::nullopt},    SafetensorsType{"F8_E4M3", 8, std::nullopt},
    SafetensorsType{"F8_E5M2", 8, std::nullopt}, SafetensorsType{"F8_E8M0", 8, std::nullopt},
    SafetensorsType{"F6_E2M3", 6, std::nullopt}, SafetensorsType{"F6_E3M2", 6, std::nullopt},
    SafetensorsType{"F4", 4, std::nullopt},      SafetensorsType{"C64", 64, std::nullopt},
};

}  // namespace

const SafetensorsType* safetensors_type(std::string_view name) noexcept {
    const auto* found =
        std::find_if(types.begin(), types.end(), [&](const SafetensorsType& t) { return t.name == name; });
    return found == types.end() ? nullptr : found;
}

std::optional<std::string_view> safetensors_name(DType dtype) noexcept {
    const auto* found =
        std::find_if(types.begin(), types.end(), [&](const SafetensorsType& t) { return t.dtype == dtype; });
    return found == types.end() ? std::nullopt : std::optional(found->name);
}

}  // namespace hetero::io
