// A working buffer that each thread keeps from its first use until it ends.
#pragma once
#include <cstddef>

namespace hetero::kernels {

constexpr std::size_t kScratchFloats = std::size_t{192} * 1024;       // what an L2 cache holds
constexpr std::size_t kLargeScratchFloats = std::size_t{512} * 1024;  // all of it: a huge page

// kLargeScratchFloats floats, aligned to 64 bytes, contents unspecified; null if there is no memory for them.
[[nodiscard]] float* thread_scratch() noexcept;

}  // namespace hetero::kernels
