// Memory for the containers of one call: the first bytes lie on the stack, what is beyond them comes from the heap.
#pragma once
#include <array>
#include <cstddef>
#include <memory_resource>

namespace hetero {

// What is given back is used again only when all of it ends. For one thread.
template <std::size_t n_bytes>
class StackMemory {
public:
    StackMemory() = default;
    StackMemory(const StackMemory&) = delete;
    StackMemory& operator=(const StackMemory&) = delete;

    [[nodiscard]] std::pmr::memory_resource* get() noexcept { return &resource_; }

private:
    alignas(std::max_align_t) std::array<std::byte, n_bytes> bytes_;
    std::pmr::monotonic_buffer_resource resource_{bytes_.data(), bytes_.size()};
};

}  // namespace hetero
