// K and V as a step of decode finds them: pages of codes or floats. Included by attention_decode.h, once per
// instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

HETERO_INLINE std::size_t row_bytes(const KvView& view) {
    if (view.codes == KvCodes::floats) return view.token_stride * (view.dtype == DType::f32 ? 4 : 2);
    return is_paired(view.codes) ? view.token_stride / 2 : view.token_stride;
}

// Runs are whole within groups, and tokens of a group within a tile.
bool has_kernels(const KvView& view, std::size_t head_dim) {
    if (view.codes == KvCodes::floats) return true;
    const std::size_t unit = is_paired(view.codes) ? 32 : 16;
    if (head_dim % unit != 0) return false;
    if (view.group == 0) return kTileKeys % view.group_tokens == 0;
    return view.group % unit == 0 && head_dim % view.group == 0 && head_dim / view.group <= kMostGroups;
}

// Keys [begin, end) of a page, which is the i-th of its block.
struct KeyTile {
    std::size_t page, i, begin, end;
};

// K or V of the head in pages, and what of it to fetch ahead.
struct Pages {
    const KvView& view;
    std::size_t head_dim, end;  // pages from `end` on are not read
    bool fetches = true;        // false: others have fetched what will be read

    [[nodiscard]] bool has_codes() const { return view.codes != KvCodes::floats; }
    [[nodiscard]] std::size_t groups() const { return head_dim / view.group; }
    [[nodiscard]] const std::uint8_t* rows_of(std::size_t page) const {
        return reinterpret_cast<const std::uint8_t*>(view.pages[page]) + view.offset;
    }
    [[nodiscard]] TileRows rows(const KeyTile& tile) const {
        const std::size_t bytes = row_bytes(view), offset = tile.begin * bytes;
        const bool more = fetches && tile.page + 1 < end;
        return {rows_of(tile.page) + offset, bytes, more ? rows_of(tile.page + 1) + offset : nullptr};
    }
    [[nodiscard]] const std::uint16_t* scales(std::size_t page) const { return halves(page, view.scale_offset); }
    [[nodiscard]] const std::uint16_t* zeros(std::size_t page) const {  // null: none
        return view.zero_offset == 0 ? nullptr : halves(page, view.zero_offset);
    }

    // Codes, scales and zeros, if they are to be fetched.
    [[nodiscard]] ByteRange bytes_of(std::size_t page) const {
        if (page >= end || !fetches) return {nullptr, nullptr};
        const std::size_t n = view.group != 0 ? groups() * kTileKeys : kTileKeys / view.group_tokens * head_dim;
        const std::size_t last = view.zero_offset > view.scale_offset ? view.zero_offset : view.scale_offset;
        return {rows_of(page), reinterpret_cast<const std::uint8_t*>(view.pages[page]) + last + 2 * n};
    }
    // Who reads the rows of a page fetches those of the next.
    HETERO_INLINE void fetch_next_scales(const KeyTile& tile) const {
        const ByteRange bytes = bytes_of(tile.page + 1);
        if (bytes.begin != nullptr) fetch({bytes.begin + kTileKeys * row_bytes(view), bytes.end});
    }

private:
    [[nodiscard]] const std::uint16_t* halves(std::size_t page, std::size_t offset) const {
        return reinterpret_cast<const std::uint16_t*>(view.pages[page] + offset);
    }
};

// visit(Count<n>), n up to kHeadsAtOnce.
template <int N>
struct Count {
    static constexpr int value = N;
};
template <class Visit>
HETERO_INLINE void visit_heads(std::size_t n, Visit visit) {
    if constexpr (kHeadsAtOnce > 1) {
        if (n == 2) return visit(Count<2>());
        if (n == 3) return visit(Count<3>());
        if (n == 4) return visit(Count<4>());
    }
    visit(Count<1>());
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
