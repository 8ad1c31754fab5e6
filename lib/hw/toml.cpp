// The profile as TOML 1.0 (https://toml.io). Objects are tables, arrays of objects arrays of tables, null is left out.
#include "base/toml.h"

#include <fmt/format.h>

#include <limits>

#include "hw/section.h"

namespace hetero::hw {
namespace {

bool bare(const std::string& key) {
    constexpr std::string_view allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    return !key.empty() && key.find_first_not_of(allowed) == std::string::npos;
}
std::string key_text(const std::string& key) { return bare(key) ? key : toml_string(key); }

std::string value_text(const Json& value) {
    if (value.is_string()) return toml_string(value.get<std::string>());
    if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
    if (value.is_number_unsigned() &&
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return fmt::format("{:#}", value.get<double>());  // TOML integers have 63 bits
    }
    if (value.is_array()) {
        std::string text = "[";
        for (const Json& item : value) {
            if (text.size() > 1) text += ", ";
            text += value_text(item);
        }
        text += ']';
        return text;
    }
    return value.dump();  // numbers are written alike
}

bool is_table_list(const Json& value) { return value.is_array() && !value.empty() && value.front().is_object(); }

void write_table(const Json& table, const std::string& path, std::string& out) {
    for (const auto& [key, value] : table.items()) {
        if (value.is_null() || value.is_object() || is_table_list(value)) continue;
        out += fmt::format("{} = {}\n", key_text(key), value_text(value));
    }
    for (const auto& [key, value] : table.items()) {
        const std::string name = path.empty() ? key_text(key) : path + "." + key_text(key);
        if (value.is_object()) {
            out += fmt::format("\n[{}]\n", name);
            write_table(value, name, out);
        } else if (is_table_list(value)) {
            for (const Json& item : value) {
                out += fmt::format("\n[[{}]]\n", name);
                write_table(item, name, out);
            }
        }
    }
}

}  // namespace

std::string to_toml(const Json& document) {
    std::string out;
    write_table(document, "", out);
    return out;
}

}  // namespace hetero::hw
