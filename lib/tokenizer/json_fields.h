// Typed look-ups in parsed JSON; errors name the place.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hetero::tokenizer {

using Json = nlohmann::json;

// The member, or nullptr where it is missing or null.
[[nodiscard]] const Json* member(const Json& object, const char* key);

// A view into `object`.
Result<std::string_view> text_of(const Json& object, const char* key, std::string_view where);
Result<bool> flag_of(const Json& object, const char* key, bool missing, std::string_view where);
// A token id: an integer in 0..2^31-1.
Result<std::int32_t> id_of(const Json& value, std::string_view where);

// Reads and parses a file. Bounds its size and its nesting before parsing.
Result<Json> read_json(const std::string& path);
// nullopt where the file does not exist.
Result<std::optional<Json>> read_json_if_there(const std::string& path);

}  // namespace hetero::tokenizer
