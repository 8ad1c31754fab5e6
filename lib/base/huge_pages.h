// Large buffers in pages of 2 MiB where the system has them: fresh memory then costs a page fault every 2 MiB, and
// copies between processes look up a page as seldom.
#pragma once
#include <cstddef>
#include <vector>

namespace hetero {

// resize(), after asking for huge pages for what it adds, and for what shares a page with it. Throws what resize()
// throws.
void resize_in_huge_pages(std::vector<std::byte>& memory, std::size_t bytes);

}  // namespace hetero
