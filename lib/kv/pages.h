// K and V as other engines lay them out: in blocks of tokens, heads before tokens or behind them, the halves of RoPE's
// pairs apart or side by side. hetero-kv files and the wire have one layout, [token][head][dim] with the halves apart;
// this is for exchange.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace hetero::kv {

struct PageLayout {
    bool heads_first = false;        // blocks are [head][token][dim] (vLLM: HND), else [token][head][dim] (NHD)
    std::uint32_t block_tokens = 0;  // 0: all tokens are one block
    // Of K: pairs (2i, 2i + 1), where states have (i, i + n/2); of the first `rotary_dims` n of a head, 0: all of it.
    bool interleaved = false;
    std::uint32_t rotary_dims = 0;
    friend bool operator==(const PageLayout&, const PageLayout&) = default;
};

struct PageShape {
    std::uint64_t tokens = 0, heads = 0, dim = 0;
    std::size_t item_bytes = 2;  // of a value
};

// [block][token][head][dim] or [block][head][token][dim]; the last block is filled up.
[[nodiscard]] std::vector<std::uint64_t> page_shape(const PageLayout& layout, const PageShape& shape);
// usage: an odd number of rotary dims, or more than a head has, which would cut a rotation.
[[nodiscard]] Status check_layout(const PageLayout& layout, std::uint64_t head_dim_k);

// `values` [token][head][dim]; `pages` as page_shape(). What fills up the last block is zero. `is_k`: RoPE's pairs.
void to_pages(const PageLayout& layout, const PageShape& shape, bool is_k, std::span<const std::byte> values,
              std::span<std::byte> pages);
void from_pages(const PageLayout& layout, const PageShape& shape, bool is_k, std::span<const std::byte> pages,
                std::span<std::byte> values);

}  // namespace hetero::kv
