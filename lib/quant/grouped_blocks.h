// Blocks of values and the scales of their groups, as the encoder and the decoder of the grouped codecs walk over them.
#pragma once
#include <algorithm>
#include <memory_resource>
#include <type_traits>
#include <vector>

#include "kernels/api/ops.h"
#include "quant/groups.h"

namespace hetero::quant {

inline constexpr std::size_t block_values = 4096;  // worked on at once

[[nodiscard]] inline std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) noexcept {
    return a / b + (a % b != 0 ? 1 : 0);
}

// Tokens of a group on the axes other than token; `tokens` where all share it.
[[nodiscard]] inline std::uint64_t group_tokens(const Params& params, std::uint64_t tokens) noexcept {
    return params.group == 0 ? std::max<std::uint64_t>(tokens, 1) : params.group;
}

// Some columns of all rows. Values: kernels::KvValues or kernels::KvOutput.
template <class Values>
[[nodiscard]] Values part_of(Values block, std::size_t column, std::size_t n) {
    const std::size_t bytes = kernels::dtype_info(block.type).block_bytes;
    using Pointer = std::conditional_t<std::is_same_v<Values, kernels::KvValues>, const std::byte*, std::byte*>;
    block.data = static_cast<Pointer>(block.data) + column * bytes;
    block.n = n;
    return block;
}

// Runs of `length` in rows that have no gaps and are multiples of it.
template <class Values>
[[nodiscard]] Values split(const Values& block, std::size_t length) {
    Values runs = block;
    runs.rows = block.rows * block.n / length;
    runs.stride = runs.n = length;
    return runs;
}

// Of a block's groups; min is unused where there is no zero.
struct GroupScales {
    explicit GroupScales(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
        : min(memory), max(memory), scale(memory), zero(memory) {}
    std::pmr::vector<float> min, max, scale, zero;

    void resize(std::size_t n) {
        for (auto* array : {&min, &max, &scale, &zero}) array->resize(n);
    }
};

}  // namespace hetero::quant
