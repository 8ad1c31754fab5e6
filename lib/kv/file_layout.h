// Names, types and texts of the file format, shared by reader and writer. hetero-kv(5) describes all of it.
#pragma once
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
inline constexpr std::int64_t schema_major = 1, schema_minor = 0;
inline constexpr std::string_view state_partial = "partial", state_complete = "complete";
inline constexpr std::string_view rope_convention = "half-split";
inline constexpr std::string_view array_layout = "token,kv_head,head_dim";
inline constexpr std::string_view kind_gqa = "gqa";

// The arrays of a layer, in the order of the columns of a checksum table.
enum class Column : std::uint8_t { k, v, k_scale, v_scale, k_zero, v_zero, count_ };
inline constexpr std::array<const char*, 6> column_names = {"k", "v", "k_scale", "v_scale", "k_zero", "v_zero"};
inline constexpr std::string_view columns_text = "k,v,k_scale,v_scale,k_zero,v_zero";
inline constexpr std::size_t n_columns = column_names.size();

template <class LayerType>
auto& tensor_of(LayerType& layer, Column column) {
    auto& part = layer.part(static_cast<int>(column) % 2 == 0 ? PartId::k : PartId::v);
    return column < Column::k_scale ? part.values : column < Column::k_zero ? part.scale : part.zero;
}
template <class Checksums>
auto& crcs_of(Checksums& layer, Column column) {
    auto& part = static_cast<int>(column) % 2 == 0 ? layer.k : layer.v;
    return column < Column::k_scale ? part.values : column < Column::k_zero ? part.scale : part.zero;
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

// A Source over a store that holds a finished file.
Result<std::unique_ptr<Source>> open_store(std::unique_ptr<io::ByteStore> store, std::string name, Verify verify);

}  // namespace hetero::kv::layout
