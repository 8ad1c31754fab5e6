#include "tokenizer/json_fields.h"

#include <filesystem>
#include <limits>

#include "io/json_text.h"
#include "io/mapped_file.h"

namespace hetero::tokenizer {
namespace {

constexpr std::size_t kLargest =
    std::size_t{128} * 1024 * 1024;  // bytes; the largest published tokenizer.json has 35 million

}  // namespace

const Json* member(const Json& object, const char* key) {
    if (!object.is_object()) return nullptr;
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
}

Result<std::string_view> text_of(const Json& object, const char* key, std::string_view where) {
    const Json* value = member(object, key);
    if (value == nullptr) return fail(Errc::bad_input, "{}: \"{}\" is missing", where, key);
    if (!value->is_string())
        return fail(Errc::bad_input, "{}: \"{}\" is {}, a string is expected", where, key, value->type_name());
    return std::string_view(value->get_ref<const std::string&>());
}

Result<bool> flag_of(const Json& object, const char* key, bool missing, std::string_view where) {
    const Json* value = member(object, key);
    if (value == nullptr) return missing;
    if (!value->is_boolean())
        return fail(Errc::bad_input, "{}: \"{}\" is {}, true or false is expected", where, key, value->type_name());
    return value->get<bool>();
}

Result<std::int32_t> id_of(const Json& value, std::string_view where) {
    if (!value.is_number_integer())
        return fail(Errc::bad_input, "{}: {} where a token id is expected", where, value.type_name());
    const bool fits = value.is_number_unsigned()
                          ? value.get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max()
                          : value.get<std::int64_t>() >= 0;
    if (!fits) return fail(Errc::bad_input, "{}: {} is not a token id", where, value.dump());
    return static_cast<std::int32_t>(value.get<std::int64_t>());
}

Result<Json> read_json(const std::string& path) {
    HETERO_TRY(const io::MappedFile file, io::MappedFile::open(path));
    if (file.bytes().size() > kLargest)
        return fail(Errc::bad_input, "{}: has {} bytes; at most {} are read", path, file.bytes().size(), kLargest);
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    return io::parse_json(text, path);
}

Result<std::optional<Json>> read_json_if_there(const std::string& path) {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) return std::optional<Json>();
    HETERO_TRY(Json json, read_json(path));
    return std::optional<Json>(std::move(json));
}

}  // namespace hetero::tokenizer
