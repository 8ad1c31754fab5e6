// K or V of one head in pages, for attention kernels.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/ops.h"

namespace hetero::test {

// Dense rows [token][stride] copied into pages of their own, the last no longer than its rows, so that a sanitizer sees
// a read beyond them.
class KvPages {
public:
    KvPages(kernels::DType dtype, std::span<const std::uint8_t> rows, std::size_t stride)
        : view_{dtype, nullptr, kOffset, stride} {
        const std::size_t page_bytes = kernels::dtype_bytes(dtype, kernels::kKvPageTokens * stride);
        for (std::size_t begin = 0; begin < rows.size(); begin += page_bytes) {
            std::vector<std::uint8_t> page(kOffset);
            const auto part = rows.subspan(begin, std::min(page_bytes, rows.size() - begin));
            page.insert(page.end(), part.begin(), part.end());
            memory_.push_back(std::move(page));
        }
        for (const auto& page : memory_) pages_.push_back(reinterpret_cast<const std::byte*>(page.data()));
        view_.pages = pages_.data();
    }
    KvPages(const KvPages&) = delete;
    KvPages& operator=(const KvPages&) = delete;
    [[nodiscard]] const kernels::KvView& view() const { return view_; }

private:
    static constexpr std::size_t kOffset = 64;
    std::vector<std::vector<std::uint8_t>> memory_;
    std::vector<const std::byte*> pages_;
    kernels::KvView view_;
};

}  // namespace hetero::test
