// Values out of JSON that anybody may have written: each is asked for by name and kind.
#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/result.h"

namespace hetero::kv {

// Reads values out of a JSON object that a file holds; what is missing or of another kind is an error that names it.
class Fields {
public:
    Fields(const nlohmann::json& json, std::string where) : json_(json), where_(std::move(where)) {}

    Result<std::string> text(const char* key) const {
        const nlohmann::json* value = find(key);
        if (value == nullptr || !value->is_string()) return missing(key, "a text");
        return value->get<std::string>();
    }
    template <class Number>
    Result<Number> integer(const char* key) const {
        const nlohmann::json* value = find(key);
        if (value == nullptr || !value->is_number_integer()) return missing(key, "a whole number");
        const bool wide = value->is_number_unsigned() &&
                          value->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<Number>::max());
        const bool low = !value->is_number_unsigned() &&
                         value->get<std::int64_t>() < static_cast<std::int64_t>(std::numeric_limits<Number>::min());
        if (wide || low) return fail(Errc::bad_input, "{}: {} is out of range", where_, key);
        return value->get<Number>();
    }
    Result<double> number(const char* key) const {
        const nlohmann::json* value = find(key);
        if (value == nullptr || !value->is_number()) return missing(key, "a number");
        return value->get<double>();
    }
    Result<bool> flag(const char* key) const {
        const nlohmann::json* value = find(key);
        if (value == nullptr || !value->is_boolean()) return missing(key, "true or false");
        return value->get<bool>();
    }
    Result<Digest> digest(const char* key) const {
        HETERO_TRY(const std::string hex, text(key));
        Digest digest{};
        if (!from_hex(hex, digest)) return missing(key, "64 hex digits");
        return digest;
    }
    Result<Fields> object(const char* key) const {
        const nlohmann::json* value = find(key);
        if (value == nullptr || !value->is_object()) return missing(key, "an object");
        return Fields(*value, fmt::format("{}: {}", where_, key));
    }
    Result<std::vector<Fields>> list(const char* key) const {
        const nlohmann::json* value = find(key);
        if (value == nullptr || !value->is_array()) return missing(key, "a list");
        std::vector<Fields> fields;
        for (const nlohmann::json& one : *value) {
            if (!one.is_object()) return missing(key, "a list of objects");
            fields.emplace_back(one, fmt::format("{}: {}", where_, key));
        }
        return fields;
    }
    [[nodiscard]] const nlohmann::json* find(const char* key) const {
        const auto found = json_.find(key);
        return found == json_.end() ? nullptr : &*found;
    }

private:
    tl::unexpected<Error> missing(const char* key, const char* what) const {
        return fail(Errc::bad_input, "{}: {} is missing, or not {}", where_, key, what);
    }
    const nlohmann::json& json_;
    std::string where_;
};

}  // namespace hetero::kv
