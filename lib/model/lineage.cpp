#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "io/gguf.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "model/digest.h"

namespace hetero::model {
namespace {

constexpr std::size_t max_file_bytes = std::size_t{1} << 20;

Result<Digest> read_digest(const std::string& file, std::string_view key, std::string_view hex) {
    Digest digest{};
    if (!from_hex(hex, digest)) {
        return fail(Errc::bad_input, "{}: {} is '{}', expected 64 hex digits", file, key, printable(hex, 80));
    }
    return digest;
}

}  // namespace

std::string lineage_text(const Digest& lineage, const Digest& tensors) {
    const nlohmann::ordered_json json = {{"schema", 1}, {"lineage", to_hex(lineage)}, {"tensors", to_hex(tensors)}};
    return json.dump(2) + "\n";
}

Result<std::optional<CarriedLineage>> carried_lineage(const io::GgufFile& gguf) {
    HETERO_TRY(const auto lineage, gguf.string(gguf_lineage_key));
    HETERO_TRY(const auto tensors, gguf.string(gguf_tensors_key));
    if (!lineage || !tensors) return std::nullopt;
    CarriedLineage carried;
    HETERO_TRY(carried.lineage, read_digest(gguf.path(), gguf_lineage_key, *lineage));
    HETERO_TRY(carried.tensors, read_digest(gguf.path(), gguf_tensors_key, *tensors));
    return carried;
}

Result<std::optional<CarriedLineage>> carried_lineage(const std::string& folder) {
    const std::string path = (std::filesystem::path(folder) / lineage_file).string();
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return std::nullopt;
    HETERO_TRY(const io::MappedFile file, io::MappedFile::open(path));
    if (file.bytes().size() > max_file_bytes) {
        return fail(Errc::bad_input, "{}: has {} bytes, at most {} are read", path, file.bytes().size(),
                    max_file_bytes);
    }
    HETERO_TRY(const nlohmann::json json,
               io::parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path));
    CarriedLineage carried;
    for (const auto& [key, digest] : {std::pair("lineage", &carried.lineage), std::pair("tensors", &carried.tensors)}) {
        if (!json.is_object() || !json.contains(key) || !json[key].is_string()) {
            return fail(Errc::bad_input, "{}: has no \"{}\"", path, key);
        }
        HETERO_TRY(*digest, read_digest(path, key, json[key].get_ref<const std::string&>()));
    }
    return carried;
}

}  // namespace hetero::model
