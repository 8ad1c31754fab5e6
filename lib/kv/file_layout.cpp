#include "kv/file_layout.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace hetero::kv::layout {
namespace {

using io::h5::Element;

constexpr std::array<std::pair<DType, Element>, 6> types = {{{DType::f16, Element::f16},
                                                             {DType::bf16, Element::bf16},
                                                             {DType::f32, Element::f32},
                                                             {DType::i8, Element::i8},
                                                             {DType::u8, Element::u8},
                                                             {DType::i32, Element::i32}}};

}  // namespace

std::string sequence_name(std::size_t index) { return fmt::format("{:04}", index); }
std::string layer_name(std::size_t index) { return fmt::format("{:03}", index); }

const char* column_name(LayerKind kind, Column column) noexcept {
    static constexpr std::array<const char*, max_columns> heads = {"k",      "v",      "k_scale", "v_scale", "k_zero",
                                                                   "v_zero", "k_sink", "v_sink",  "k_tail",  "v_tail"};
    static constexpr std::array<const char*, max_columns> latent = {
        "latent",      "k_rope",      "latent_scale", "k_rope_scale", "latent_zero",
        "k_rope_zero", "latent_sink", "k_rope_sink",  "latent_tail",  "k_rope_tail"};
    return (kind == LayerKind::mla ? latent : heads).at(static_cast<std::size_t>(column));
}

std::vector<std::uint64_t> file_shape(LayerKind kind, std::vector<std::uint64_t> shape) {
    if (kind == LayerKind::mla && shape.size() == 3) shape.erase(shape.begin() + 1);
    return shape;
}

std::string_view columns_text(const Header& header) noexcept {
    static constexpr std::string_view all = "k,v,k_scale,v_scale,k_zero,v_zero,k_sink,v_sink,k_tail,v_tail";
    return header.keeps_rows() ? all : all.substr(0, all.find(",k_sink"));
}

std::uint64_t layer_chunks(const Header& header, std::size_t sequence, std::size_t layer) {
    return chunk_count(header.stored_tokens(sequence, layer), header.tokens_per_chunk);
}

std::uint64_t column_chunks(const Header& header, std::size_t sequence, std::size_t layer, Column column) {
    const Scheme& scheme = header.scheme(layer, part_of(column));
    const quant::Codec* codec = quant::find_codec(scheme.codec);
    const KeptRows rows = kept_rows(scheme, header.stored_tokens(sequence, layer));
    if (column >= Column::k_sink) return (column < Column::k_tail ? rows.sinks : rows.tail) == 0 ? 0 : 1;
    const bool shared = column >= Column::k_scale && codec != nullptr && codec->token_step(scheme.params) == 0;
    return std::min<std::uint64_t>(chunk_count(rows.middle, header.tokens_per_chunk), shared ? 1 : UINT64_MAX);
}

std::uint64_t table_chunks(const Header& header, std::size_t sequence) {
    std::uint64_t most = 0;
    for (std::uint32_t layer = 0; layer < header.identity.n_layers; ++layer)
        most = std::max(most, layer_chunks(header, sequence, layer));
    return most;
}

std::optional<Element> element_of(DType dtype) noexcept {
    for (const auto& [ours, file] : types)
        if (ours == dtype) return file;
    return std::nullopt;
}

std::optional<DType> dtype_of(Element element) noexcept {
    for (const auto& [ours, file] : types)
        if (file == element) return ours;
    return std::nullopt;
}

Result<std::string> provenance_text(const std::vector<ProvenanceEntry>& entries) {
    std::string text;
    for (const ProvenanceEntry& entry : entries) {
        try {
            const nlohmann::json line = {{"tool", entry.tool}, {"version", entry.version}, {"what", entry.what}};
            text += line.dump() + "\n";
        } catch (const nlohmann::json::exception&) {  // what JSON cannot hold is not UTF-8
            return fail(Errc::bad_input, "provenance of {} is not UTF-8", entry.tool);
        }
    }
    return text;
}

Result<std::vector<ProvenanceEntry>> parse_provenance(std::string_view text) {
    std::vector<ProvenanceEntry> entries;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const auto line = nlohmann::json::parse(text.substr(0, end), nullptr, false);
        text.remove_prefix(std::min(end + 1, text.size()));
        const auto field = [&line](const char* key) -> const std::string* {
            const auto found = line.find(key);
            return found == line.end() ? nullptr : found->get_ptr<const std::string*>();
        };
        const std::string *tool = nullptr, *version = nullptr, *what = nullptr;
        if (line.is_object()) tool = field("tool"), version = field("version"), what = field("what");
        if (tool == nullptr || version == nullptr || what == nullptr)
            return fail(Errc::bad_input, "attribute provenance of /: line {} is no object of tool, version and what",
                        entries.size() + 1);
        entries.push_back({*tool, *version, *what});
    }
    return entries;
}

}  // namespace hetero::kv::layout
