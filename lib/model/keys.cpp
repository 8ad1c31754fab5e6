#include "model/keys.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "io/gguf.h"
#include "io/json_text.h"

namespace hetero::model {
namespace {

using Json = nlohmann::json;

constexpr int max_nesting = 4;         // of objects that are flattened
constexpr std::size_t max_shown = 80;  // characters of a value in a message

std::string shortened(std::string_view text) { return printable(text, max_shown); }

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::optional<std::vector<std::string>> json_strings(const Json& json) {
    if (!json.is_array()) return std::nullopt;
    std::vector<std::string> strings;
    for (const Json& value : json) {
        if (!value.is_string()) return std::nullopt;
        strings.push_back(value.get<std::string>());
    }
    return strings;
}

std::optional<std::vector<std::int64_t>> json_integers(const Json& json) {
    if (!json.is_array()) return std::nullopt;
    std::vector<std::int64_t> integers;
    for (const Json& value : json) {
        if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() >> 63U != 0)) {
            return std::nullopt;
        }
        integers.push_back(value.get<std::int64_t>());
    }
    return integers;
}

Keys::Value json_value(const Json& json) {
    switch (json.type()) {
        case Json::value_t::null:
            return std::monostate{};
        case Json::value_t::boolean:
            return json.get<bool>();
        case Json::value_t::number_integer:
            return json.get<std::int64_t>();
        case Json::value_t::number_unsigned: {
            const auto value = json.get<std::uint64_t>();
            if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
                return static_cast<double>(value);
            }
            return static_cast<std::int64_t>(value);
        }
        case Json::value_t::number_float:
            return json.get<double>();
        case Json::value_t::string:
            return json.get<std::string>();
        default:
            return Keys::Compound{json.empty(), shortened(dumped(json)), json_strings(json), json_integers(json)};
    }
}

void flatten(const Json& json, const std::string& prefix, int depth,
             std::map<std::string, Keys::Value, std::less<>>& out) {
    for (const auto& [name, value] : json.items()) {
        const std::string key = prefix.empty() ? name : fmt::format("{}.{}", prefix, name);
        if (value.is_object() && !value.empty() && depth < max_nesting) {
            flatten(value, key, depth + 1, out);
        } else {
            out.insert_or_assign(key, json_value(value));
        }
    }
}

std::string shown(const Keys::Value& value) {
    struct Visitor {
        std::string operator()(std::monostate) const { return "null"; }
        std::string operator()(std::int64_t v) const { return fmt::format("{}", v); }
        std::string operator()(double v) const { return fmt::format("{}", v); }
        std::string operator()(bool v) const { return v ? "true" : "false"; }
        std::string operator()(const std::string& v) const { return fmt::format("\"{}\"", shortened(v)); }
        std::string operator()(const Keys::Compound& v) const { return v.text; }
    };
    return std::visit(Visitor{}, value);
}

bool switched_off(const Keys::Value& value) {
    if (std::holds_alternative<std::monostate>(value)) return true;
    if (const bool* flag = std::get_if<bool>(&value)) return !*flag;
    if (const auto* text = std::get_if<std::string>(&value)) return text->empty();
    if (const auto* compound = std::get_if<Keys::Compound>(&value)) return compound->empty;
    return false;
}

}  // namespace

Result<Keys> Keys::from_json(std::string file, std::string_view text) {
    HETERO_TRY(const Json json, io::parse_json(text, file));
    if (!json.is_object()) return fail(Errc::bad_input, "{}: must be a JSON object", file);
    Keys keys;
    keys.file_ = std::move(file);
    flatten(json, "", 1, keys.values_);
    return keys;
}

Keys Keys::from_gguf(const io::GgufFile& gguf) {
    struct Visitor {
        Value operator()(std::int64_t v) const { return v; }
        Value operator()(std::uint64_t v) const { return static_cast<double>(v); }  // beyond INT64_MAX only
        Value operator()(double v) const { return v; }
        Value operator()(bool v) const { return v; }
        Value operator()(std::string_view v) const { return std::string(v); }
        Value operator()(const io::GgufArray& v) const {
            return Compound{v.size == 0, fmt::format("an array of {}", v.size), std::nullopt, std::nullopt};
        }
    };
    Keys keys;
    keys.file_ = gguf.path();
    for (const auto& [key, value] : gguf.metadata()) {
        keys.values_.insert_or_assign(key, std::visit(Visitor{}, value));
    }
    return keys;
}

const Keys::Value* Keys::find(std::string_view key) {
    read_.emplace(key);
    const auto found = values_.find(key);
    if (found == values_.end() || std::holds_alternative<std::monostate>(found->second)) return nullptr;
    return &found->second;
}

Result<std::optional<std::int64_t>> Keys::integer(std::string_view key, std::int64_t low, std::int64_t high) {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    const auto* integer = std::get_if<std::int64_t>(value);
    if (integer == nullptr || *integer < low || *integer > high) {
        return fail(Errc::bad_input, "{}: {} must be an integer from {} to {}, found {}", file_, key, low, high,
                    shown(*value));
    }
    return *integer;
}

Result<std::optional<double>> Keys::number(std::string_view key, double low, double high) {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    double number = std::numeric_limits<double>::quiet_NaN();
    if (const auto* integer = std::get_if<std::int64_t>(value)) number = static_cast<double>(*integer);
    if (const auto* real = std::get_if<double>(value)) number = *real;
    if (!(number >= low && number <= high)) {
        return fail(Errc::bad_input, "{}: {} must be a number from {} to {}, found {}", file_, key, low, high,
                    shown(*value));
    }
    return number;
}

Result<std::optional<bool>> Keys::boolean(std::string_view key) {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    const bool* flag = std::get_if<bool>(value);
    if (flag == nullptr) {
        return fail(Errc::bad_input, "{}: {} must be true or false, found {}", file_, key, shown(*value));
    }
    return *flag;
}

Result<std::optional<std::string>> Keys::text(std::string_view key) {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    const auto* text = std::get_if<std::string>(value);
    if (text == nullptr) return fail(Errc::bad_input, "{}: {} must be a string, found {}", file_, key, shown(*value));
    return *text;
}

std::optional<std::string> Keys::compound_text(std::string_view key) {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    return shown(*value);
}

Result<std::optional<std::vector<std::string>>> Keys::texts(std::string_view key) {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    const auto* compound = std::get_if<Compound>(value);
    if (compound == nullptr || !compound->strings) {
        return fail(Errc::bad_input, "{}: {} must be an array of strings, found {}", file_, key, shown(*value));
    }
    return compound->strings;
}

Result<std::optional<std::vector<std::int64_t>>> Keys::integers(std::string_view key) {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    const auto* compound = std::get_if<Compound>(value);
    if (compound == nullptr || !compound->integers) {
        return fail(Errc::bad_input, "{}: {} must be an array of integers, found {}", file_, key, shown(*value));
    }
    return compound->integers;
}

bool Keys::has(std::string_view key) const {
    if (!key.ends_with('*')) return values_.contains(key);
    const std::string_view prefix = key.substr(0, key.size() - 1);
    const auto next = values_.lower_bound(prefix);
    return next != values_.end() && next->first.starts_with(prefix);
}

Result<std::uint32_t> Keys::count(std::string_view key, std::uint32_t high, std::optional<std::uint32_t> fallback) {
    HETERO_TRY(const auto value, integer(key, 1, high));
    if (value) return static_cast<std::uint32_t>(*value);
    if (fallback) return *fallback;
    return fail(Errc::bad_input, "{}: {} is missing", file_, key);
}

Status Keys::only_text(std::string_view key, std::string_view implemented) {
    HETERO_TRY(const auto value, text(key));
    if (value && *value != implemented) {
        return fail(Errc::bad_input, "{}: {} is \"{}\"; only \"{}\" is implemented", file_, key, shortened(*value),
                    implemented);
    }
    return {};
}

Status Keys::only_flag(std::string_view key, bool implemented) {
    HETERO_TRY(const auto value, boolean(key));
    if (value && *value != implemented) {
        return fail(Errc::bad_input, "{}: {} is {}; only {} is implemented", file_, key, *value, implemented);
    }
    return {};
}

Status Keys::only_number(std::string_view key, double implemented) {
    constexpr double any = std::numeric_limits<double>::max();
    HETERO_TRY(const auto value, number(key, -any, any));
    if (value && *value != implemented) {
        return fail(Errc::bad_input, "{}: {} is {}; only {} is implemented", file_, key, *value, implemented);
    }
    return {};
}

void Keys::harmless(std::initializer_list<std::string_view> keys) { read_.insert(keys.begin(), keys.end()); }

Status Keys::refuse_unread(std::string_view prefix) const {
    for (const auto& [key, value] : values_) {
        if (!key.starts_with(prefix) || read_.contains(key) || switched_off(value)) continue;
        bool known = false;
        for (const std::string& pattern : read_) {
            known = known || (pattern.ends_with('*') && key.starts_with(pattern.substr(0, pattern.size() - 1)));
        }
        if (known) continue;
        return fail(Errc::bad_input,
                    "{}: {} = {} is not implemented, and may change what the model computes; "
                    "if it does not, remove the key",
                    file_, key, shown(value));
    }
    return {};
}

}  // namespace hetero::model
