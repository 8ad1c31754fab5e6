// Buffers of activations: they begin at a cache line, which matrix units ask for, and large ones lie in huge pages.
#pragma once
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstddef>
#include <new>
#include <vector>

namespace hetero::engine {

template <class T>
struct AlignedAllocator {
    using value_type = T;
    static constexpr std::size_t huge_page = std::size_t{2} << 20;

    AlignedAllocator() = default;
    template <class U>
    explicit AlignedAllocator(const AlignedAllocator<U>&) noexcept {}

    static std::align_val_t alignment(std::size_t bytes) {
        return std::align_val_t{bytes < huge_page ? 64 : huge_page};
    }
    T* allocate(std::size_t n) {
        const std::size_t bytes = n * sizeof(T);
        void* memory = ::operator new(bytes, alignment(bytes));
#ifdef __linux__
        if (bytes >= huge_page) (void)::madvise(memory, bytes, MADV_HUGEPAGE);  // a hint
#endif
        return static_cast<T*>(memory);
    }
    void deallocate(T* memory, std::size_t n) noexcept { ::operator delete(memory, alignment(n * sizeof(T))); }
    bool operator==(const AlignedAllocator&) const = default;
};

template <class T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

}  // namespace hetero::engine
