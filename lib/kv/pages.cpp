#include "kv/pages.h"

#include <algorithm>
#include <cstring>

namespace hetero::kv {
namespace {

std::uint64_t block_of(const PageLayout& layout, const PageShape& shape) {
    return layout.block_tokens == 0 ? std::max<std::uint64_t>(1, shape.tokens) : layout.block_tokens;
}

// Calls `row(value_row, page_row)` for every token and head, in rows of `dim`.
template <class Row>
void each_row(const PageLayout& layout, const PageShape& shape, Row row) {
    const std::uint64_t block = block_of(layout, shape);
    for (std::uint64_t token = 0; token < shape.tokens; ++token) {
        const std::uint64_t first = token / block * block, within = token % block;
        for (std::uint64_t head = 0; head < shape.heads; ++head)
            row(token * shape.heads + head, layout.heads_first ? first * shape.heads + head * block + within
                                                               : (first + within) * shape.heads + head);
    }
}

std::uint64_t rotary(const PageLayout& layout, const PageShape& shape, bool is_k) {
    if (!is_k || !layout.interleaved) return 0;
    return layout.rotary_dims == 0 ? shape.dim : layout.rotary_dims;
}

}  // namespace

std::vector<std::uint64_t> page_shape(const PageLayout& layout, const PageShape& shape) {
    const std::uint64_t block = block_of(layout, shape), blocks = (shape.tokens + block - 1) / block;
    if (layout.heads_first) return {blocks, shape.heads, block, shape.dim};
    return {blocks, block, shape.heads, shape.dim};
}

Status check_layout(const PageLayout& layout, std::uint64_t head_dim_k) {
    if (!layout.interleaved) return {};
    const std::uint64_t n = layout.rotary_dims == 0 ? head_dim_k : layout.rotary_dims;
    if (n % 2 == 0 && n <= head_dim_k) return {};
    return fail(Errc::usage, "{} dimensions of a K head of {} cannot be rotated in pairs", n, head_dim_k);
}

void to_pages(const PageLayout& layout, const PageShape& shape, bool is_k, std::span<const std::byte> values,
              std::span<std::byte> pages) {
    const std::size_t item = shape.item_bytes, row_bytes = shape.dim * item;
    const std::uint64_t pairs = rotary(layout, shape, is_k) / 2;
    std::memset(pages.data(), 0, pages.size());
    each_row(layout, shape, [&](std::uint64_t from, std::uint64_t to) {
        const std::byte* x = values.data() + from * row_bytes;
        std::byte* y = pages.data() + to * row_bytes;
        for (std::uint64_t i = 0; i < pairs; ++i) {
            std::memcpy(y + 2 * i * item, x + i * item, item);
            std::memcpy(y + (2 * i + 1) * item, x + (pairs + i) * item, item);
        }
        std::memcpy(y + 2 * pairs * item, x + 2 * pairs * item, row_bytes - 2 * pairs * item);
    });
}

void from_pages(const PageLayout& layout, const PageShape& shape, bool is_k, std::span<const std::byte> pages,
                std::span<std::byte> values) {
    const std::size_t item = shape.item_bytes, row_bytes = shape.dim * item;
    const std::uint64_t pairs = rotary(layout, shape, is_k) / 2;
    each_row(layout, shape, [&](std::uint64_t to, std::uint64_t from) {
        const std::byte* y = pages.data() + from * row_bytes;
        std::byte* x = values.data() + to * row_bytes;
        for (std::uint64_t i = 0; i < pairs; ++i) {
            std::memcpy(x + i * item, y + 2 * i * item, item);
            std::memcpy(x + (pairs + i) * item, y + (2 * i + 1) * item, item);
        }
        std::memcpy(x + 2 * pairs * item, y + 2 * pairs * item, row_bytes - 2 * pairs * item);
    });
}

}  // namespace hetero::kv
