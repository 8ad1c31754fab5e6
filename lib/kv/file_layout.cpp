#include "kv/file_layout.h"

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
