#include "base/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace hetero {

void resize_in_huge_pages(std::vector<std::byte>& memory, std::size_t bytes) {
    constexpr std::uintptr_t page = 2U << 20;
    if (bytes > memory.capacity() && bytes >= page) {
        memory.reserve(bytes);  // not touched yet
        const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
        const std::uintptr_t first = begin / page * page, end = (begin + bytes + page - 1) / page * page;
        // For its neighbours as well: a page can be huge only if all of it may. Refused, it is memory in small pages.
        ::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
    }
    memory.resize(bytes);
}

}  // namespace hetero
