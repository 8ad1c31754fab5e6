// Names, types and texts of the file format, shared by reader and writer. hetero-kv(5) describes all of it.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/hdf5.h"
#include "kv/file.h"
#include "kv/integrity.h"

namespace hetero::kv::layout {

inline constexpr std::string_view format_name = "hetero-kv";
inline constexpr std::int64_t schema_major = 1;
// Before the codec's name, of rotated heads: a reader that knows no rotation refuses a scheme of this name.
inline constexpr std::string_view rotated_prefix = "had:";
// Of version 1.1 is what 1.0 cannot say: kinds of layers other than gqa, shards, tokens kept as they were, rotation,
// scales of a head or a tensor. All else is written as 1.0.
[[nodiscard]] inline std::int64_t schema_minor_of(const Header& header) noexcept {
    const auto is_new = [](const Scheme& scheme) {
        return scheme.params.hadamard || scheme.params.axis >= quant::Axis::head;
    };
    const bool schemes = std::any_of(header.k_schemes.begin(), header.k_schemes.end(), is_new) ||
                         std::any_of(header.v_schemes.begin(), header.v_schemes.end(), is_new);
    return header.all_gqa() && !header.is_shard() && !header.keeps_rows() && !schemes ? 0 : 1;
}
inline constexpr std::string_view state_partial = "partial", state_complete = "complete";
inline constexpr std::string_view rope_convention = "half-split";
inline constexpr std::string_view array_layout = "token,kv_head,head_dim";

// The arrays of a layer, in the order of the columns of a checksum table.
enum class Column : std::uint8_t { k, v, k_scale, v_scale, k_zero, v_zero, k_sink, v_sink, k_tail, v_tail, count_ };
inline constexpr auto max_columns = static_cast<std::size_t>(Column::count_);
// Those of sinks and tails are there only where some scheme has them.
[[nodiscard]] inline std::size_t column_count(const Header& header) noexcept {
    return header.keeps_rows() ? max_columns : static_cast<std::size_t>(Column::k_sink);
}
[[nodiscard]] std::string_view columns_text(const Header& header) noexcept;
[[nodiscard]] constexpr PartId part_of(Column column) noexcept {
    return static_cast<int>(column) % 2 == 0 ? PartId::k : PartId::v;
}
// Where in part_arrays it is: columns have K and V of each in turn.
static_assert(max_columns == 2 * std::size(part_arrays));
[[nodiscard]] constexpr std::size_t array_of(Column column) noexcept { return static_cast<std::size_t>(column) / 2; }
// The dataset's name: "k_scale"; of mla layers "latent", "k_rope", "latent_scale", ...
[[nodiscard]] const char* column_name(LayerKind kind, Column column) noexcept;
// The dataset's shape: mla layers leave out the head.
[[nodiscard]] std::vector<std::uint64_t> file_shape(LayerKind kind, std::vector<std::uint64_t> shape);

// The member of a Part, or of its checksums, that a column holds.
template <class PartType>
auto& member_of(PartType& part, Column column) {
    if (column < Column::k_scale) return part.values;
    if (column < Column::k_zero) return part.scale;
    if (column < Column::k_sink) return part.zero;
    return column < Column::k_tail ? part.sink : part.tail;
}
template <class LayerType>
auto& tensor_of(LayerType& layer, Column column) {
    return member_of(layer.part(part_of(column)), column);
}
template <class Checksums>
auto& crcs_of(Checksums& layer, Column column) {
    return member_of(part_of(column) == PartId::k ? layer.k : layer.v, column);
}

[[nodiscard]] std::string sequence_name(std::size_t index);  // "0000"
[[nodiscard]] std::string layer_name(std::size_t index);     // "000"

[[nodiscard]] std::optional<io::h5::Element> element_of(DType dtype) noexcept;
[[nodiscard]] std::optional<DType> dtype_of(io::h5::Element element) noexcept;

// One JSON object per line, keys sorted.
Result<std::string> provenance_text(const std::vector<ProvenanceEntry>& entries);
Result<std::vector<ProvenanceEntry>> parse_provenance(std::string_view text);

[[nodiscard]] inline std::uint64_t chunk_count(std::uint64_t n_tokens, std::uint32_t tokens_per_chunk) noexcept {
    return n_tokens / tokens_per_chunk + (n_tokens % tokens_per_chunk != 0 ? 1 : 0);
}
// Chunks of a layer, and of the layer that has most of them: the width of the sequence's checksum table.
[[nodiscard]] std::uint64_t layer_chunks(const Header& header, std::size_t sequence, std::size_t layer);
// Of one array: scales that all tokens share are one chunk.
[[nodiscard]] std::uint64_t column_chunks(const Header& header, std::size_t sequence, std::size_t layer, Column column);
[[nodiscard]] std::uint64_t table_chunks(const Header& header, std::size_t sequence);

// A Source over a store that holds a finished file.
Result<std::unique_ptr<Source>> open_store(std::unique_ptr<io::ByteStore> store, std::string name, Verify verify);

}  // namespace hetero::kv::layout
