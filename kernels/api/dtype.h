// Element types of weights, activations and KV, and the byte layout of their blocks.
// Block formats are ggml's (https://github.com/ggml-org/ggml, ggml-common.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace hetero::kernels {

enum class DType : std::uint8_t {
    f32, f16, bf16,
    i8, u8, i32,
    q8_0, q4_0, q4_1, q5_0, q5_1,
    q2_k, q3_k, q4_k, q5_k, q6_k,
    iq4_nl,
    count_,
};

struct DTypeInfo {
    std::string_view name;       // "f16", "q4_k"
    std::uint32_t block_elems;   // elements in a block; 1 for plain types
    std::uint32_t block_bytes;
};

[[nodiscard]] const DTypeInfo& dtype_info(DType type) noexcept;
[[nodiscard]] std::optional<DType> dtype_from_name(std::string_view name) noexcept;

// Bytes of `n` elements; n must be a multiple of the block.
[[nodiscard]] inline std::size_t dtype_bytes(DType type, std::size_t n) noexcept {
    const DTypeInfo& info = dtype_info(type);
    return n / info.block_elems * info.block_bytes;
}

}  // namespace hetero::kernels
