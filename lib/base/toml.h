// TOML documents (toml.io, 1.0) as plain values, for file formats of our own. Settings of tools are config.h's.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace hetero {

struct TomlNode {
    using Array = std::vector<TomlNode>;
    using Table = std::vector<std::pair<std::string, TomlNode>>;  // sorted by key; a key occurs once
    std::variant<bool, std::int64_t, double, std::string, Array, Table> value;
    std::uint32_t line = 0;

    template <class T>
    [[nodiscard]] const T* as() const noexcept {
        return std::get_if<T>(&value);
    }
    // Of a table; nullptr where it is none or has no such key.
    [[nodiscard]] const TomlNode* find(std::string_view key) const noexcept;
};

// The document's table. `name` stands in messages: "NAME:LINE: ...". Errors: bad_input (no TOML, or a date or time, for
// which these formats have no use), resource (no memory).
Result<TomlNode> parse_toml(std::string_view text, const std::string& name);

// A whole file or pipe of at most `max_bytes`; `what`: "configuration file". Errors: bad_input (absent, a folder, too
// large), resource (not readable).
Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes, std::string_view what);

// `text` as a TOML string: in quotes, with what must be escaped.
[[nodiscard]] std::string toml_string(std::string_view text);
// The shortest that reads back the same, and a float to TOML whatever the value.
[[nodiscard]] std::string toml_real(double value);

}  // namespace hetero
