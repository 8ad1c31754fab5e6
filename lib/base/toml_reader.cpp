#include "base/toml_reader.h"

#include <algorithm>

#include "base/config.h"
#include "base/printable.h"

namespace hetero {
namespace {

constexpr std::size_t max_text_bytes = 1024;

}  // namespace

tl::unexpected<Error> TomlReader::error_at(const TomlNode& at, std::string_view message) const {
    return fail(Errc::bad_input, "{}:{}: {}", file_, at.line, message);
}

Status TomlReader::version(std::string_view key, std::uint64_t expected) const {
    std::uint64_t found = 0;
    HETERO_CHECK(count_up_to(key, found, 1ULL << 32));
    if (found == expected) return {};
    return fail(Errc::bad_input, "{}: {} of version {}; this program reads version {}", file_, path_, found, expected);
}

Status TomlReader::only(std::span<const std::string_view> known) const {
    const auto* entries = table_.as<TomlNode::Table>();
    if (entries == nullptr) return wrong("{} must be a table", path_);
    for (const auto& [key, node] : *entries) {
        if (std::find(known.begin(), known.end(), key) != known.end()) continue;
        return error_at(node, fmt::format("'{}' is no key of {}; the nearest one is '{}'", printable(key), path_,
                                          nearest_name(key, known)));
    }
    return {};
}

Result<const TomlNode*> TomlReader::need(std::string_view key) const {
    const TomlNode* node = table_.find(key);
    if (node == nullptr) return wrong("{} lacks '{}'", path_, key);
    return node;
}

Status TomlReader::text(std::string_view key, std::string& out) const {
    HETERO_TRY(const TomlNode* node, need(key));
    const auto* value = node->as<std::string>();
    if (value == nullptr) return error_at(*node, fmt::format("'{}' must be a string", key));
    if (value->size() > max_text_bytes) return error_at(*node, fmt::format("'{}' is too long", key));
    out = *value;
    return {};
}

Status TomlReader::flag(std::string_view key, bool& out) const {
    HETERO_TRY(const TomlNode* node, need(key));
    const bool* value = node->as<bool>();
    if (value == nullptr) return error_at(*node, fmt::format("'{}' must be true or false", key));
    out = *value;
    return {};
}

Status TomlReader::digest(std::string_view key, Digest& out) const {
    HETERO_TRY(const TomlNode* node, need(key));
    const auto* value = node->as<std::string>();
    if (value == nullptr || !from_hex(*value, out))
        return error_at(*node, fmt::format("'{}' must be a string of 64 hex digits", key));
    return {};
}

Status TomlReader::real(std::string_view key, double& out, double max) const {
    HETERO_TRY(const TomlNode* node, need(key));
    const double* real = node->as<double>();
    const auto* whole = node->as<std::int64_t>();
    if (real == nullptr && whole == nullptr) return error_at(*node, fmt::format("'{}' must be a number", key));
    const double value = real != nullptr ? *real : static_cast<double>(*whole);
    if (!(value >= 0 && value <= max))
        return error_at(*node, fmt::format("'{}' is {}, expected 0 to {}", key, value, max));
    out = value;
    return {};
}

Status TomlReader::count_up_to(std::string_view key, std::uint64_t& out, std::uint64_t max) const {
    HETERO_TRY(const TomlNode* node, need(key));
    const auto* value = node->as<std::int64_t>();
    if (value == nullptr) return error_at(*node, fmt::format("'{}' must be a whole number", key));
    if (*value < 0 || static_cast<std::uint64_t>(*value) > max)
        return error_at(*node, fmt::format("'{}' is {}, expected 0 to {}", key, *value, max));
    out = static_cast<std::uint64_t>(*value);
    return {};
}

std::optional<TomlReader> TomlReader::table(std::string_view key) const {
    const TomlNode* node = table_.find(key);
    if (node == nullptr) return std::nullopt;
    return TomlReader(*node, file_, fmt::format("[{}]", key));
}

Result<std::vector<TomlReader>> TomlReader::tables(std::string_view key, std::size_t max) const {
    HETERO_TRY(const TomlNode* node, need(key));
    const auto* array = node->as<TomlNode::Array>();
    if (array == nullptr) return error_at(*node, fmt::format("'{}' must be a list", key));
    if (array->size() > max) return error_at(*node, fmt::format("'{}' has over {} entries", key, max));
    std::vector<TomlReader> out;
    for (const TomlNode& entry : *array) out.emplace_back(entry, file_, fmt::format("an entry of '{}'", key));
    return out;
}

}  // namespace hetero
