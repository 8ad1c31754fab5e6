#include "engine/gather_heads.h"

#include <algorithm>
#include <cstring>

namespace hetero::engine {
namespace {

constexpr std::size_t block_bytes = 16U << 20;

// Copies `bytes` of each of `count` tokens.
void copy_rows(const std::byte* from, std::size_t from_stride, std::byte* to, std::size_t to_stride, std::size_t bytes,
               std::uint64_t count) {
    for (std::uint64_t i = 0; i < count && bytes > 0; ++i) {
        std::memcpy(to + i * to_stride, from + i * from_stride, bytes);
    }
}

}  // namespace

Status gather_heads(Communicator& group, std::span<const Range> kept, std::size_t row_bytes, std::uint64_t n_tokens,
                    std::span<const std::byte> own, std::span<std::byte> whole) {
    std::vector<Range> parts;  // [rank], handed over
    std::size_t n_heads = 0;
    for (const Range& heads : kept) {
        parts.push_back({std::max(heads.begin, n_heads), std::max(heads.end, n_heads)});
        n_heads = parts.back().end;
    }
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::size_t own_stride = kept[rank].size() * row_bytes, whole_stride = n_heads * row_bytes;
    const std::size_t mine_bytes = parts[rank].size() * row_bytes;
    const std::byte* mine = own.data() + (parts[rank].begin - kept[rank].begin) * row_bytes;
    const std::uint64_t block = std::max<std::uint64_t>(1, block_bytes / whole_stride);
    std::vector<std::byte> packed(std::min(block, n_tokens) * mine_bytes);
    std::vector<std::size_t> sizes(parts.size());
    for (std::uint64_t first = 0; first < n_tokens; first += block) {
        const std::uint64_t count = std::min(block, n_tokens - first);
        for (std::size_t r = 0; r < parts.size(); ++r) sizes[r] = count * parts[r].size() * row_bytes;
        copy_rows(mine + first * own_stride, own_stride, packed.data(), mine_bytes, mine_bytes, count);
        HETERO_TRY(const std::span<const std::byte> all, group.gather(std::span(packed).first(sizes[rank]), sizes));
        if (!group.is_root()) continue;
        const std::byte* from = all.data();
        for (std::size_t r = 0; r < parts.size(); from += sizes[r++]) {
            const std::size_t bytes = parts[r].size() * row_bytes;
            copy_rows(from, bytes, whole.data() + first * whole_stride + parts[r].begin * row_bytes, whole_stride,
                      bytes, count);
        }
    }
    return {};
}

}  // namespace hetero::engine
