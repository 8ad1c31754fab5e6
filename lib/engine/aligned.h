// Memory that is streamed through: it begins at a cache line, which matrix units ask for, and much of it lies in huge
// pages, which are had sooner and found faster.
#pragma once
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace hetero::engine {

[[nodiscard]] constexpr std::size_t round_up(std::size_t n, std::size_t granule) noexcept {
    return (n + granule - 1) / granule * granule;
}

inline constexpr std::size_t huge_page = std::size_t{2} << 20;

inline void advise_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) noexcept {
#ifdef __linux__
    if (bytes >= huge_page) (void)::madvise(memory, bytes, MADV_HUGEPAGE);  // a hint
#endif
}

// The opposite: where little of much memory is touched, a huge page is filled with zeros for a few bytes.
inline void advise_small_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) noexcept {
#ifdef __linux__
    if (bytes >= huge_page) (void)::madvise(memory, bytes, MADV_NOHUGEPAGE);  // a hint
#endif
}

// The whole pages of it are given back; what they held is lost, and fresh ones are zero.
inline void give_back_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) noexcept {
#ifdef __linux__
    constexpr std::uintptr_t page = 4096;
    const auto begin = (reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page;
    const auto end = (reinterpret_cast<std::uintptr_t>(memory) + bytes) / page * page;
    if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // a hint
#endif
}

struct FreeBytes {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
};
using Bytes = std::unique_ptr<std::byte, FreeBytes>;

// Not initialized, so that it costs nothing before its first use; null where there is no such memory.
inline Bytes take_bytes(std::size_t bytes) noexcept {
    const std::size_t alignment = bytes < huge_page ? 64 : huge_page;
    const std::size_t whole = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    Bytes memory(static_cast<std::byte*>(std::aligned_alloc(alignment, whole)));
    if (memory != nullptr) advise_huge_pages(memory.get(), whole);
    return memory;
}

template <class T>
struct AlignedAllocator {
    using value_type = T;

    AlignedAllocator() = default;
    template <class U>
    explicit AlignedAllocator(const AlignedAllocator<U>&) noexcept {}

    static std::align_val_t alignment(std::size_t bytes) {
        return std::align_val_t{bytes < huge_page ? 64 : huge_page};
    }
    T* allocate(std::size_t n) {
        const std::size_t bytes = n * sizeof(T);
        void* memory = ::operator new(bytes, alignment(bytes));
        advise_huge_pages(memory, bytes);
        return static_cast<T*>(memory);
    }
    void deallocate(T* memory, std::size_t n) noexcept { ::operator delete(memory, alignment(n * sizeof(T))); }
    bool operator==(const AlignedAllocator&) const = default;
};

template <class T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

}  // namespace hetero::engine
