// Private to hw: how a profile's tables are read, once the schema has passed them.
#pragma once
#include <climits>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "base/result.h"

namespace hetero::hw {

// A table whose keys and kinds have been checked; absent and null are alike.
class Table {
public:
    static constexpr std::size_t longest_text = 1024;

    Table(const nlohmann::json* json, const std::string& name, std::string path)
        : json_(json), name_(&name), path_(std::move(path)) {}

    [[nodiscard]] const nlohmann::json* find(const char* key) const {
        if (json_ == nullptr) return nullptr;
        const auto found = json_->find(key);
        return found == json_->end() || found->is_null() ? nullptr : &*found;
    }
    [[nodiscard]] Table table(const char* key) const { return {find(key), *name_, at(key)}; }
    [[nodiscard]] std::vector<Table> tables(const char* key) const {
        std::vector<Table> out;
        if (const nlohmann::json* list = find(key)) {
            for (const nlohmann::json& item : *list)
                out.emplace_back(&item, *name_, fmt::format("{}[{}]", at(key), out.size()));
        }
        return out;
    }

    // Fit for a line on a terminal: names and reasons are printed.
    [[nodiscard]] std::string text(const char* key) const {
        const nlohmann::json* value = find(key);
        return value != nullptr ? printable(value->get_ref<const std::string&>(), longest_text) : "";
    }
    [[nodiscard]] std::optional<bool> flag(const char* key) const { return get<bool>(key); }
    [[nodiscard]] std::optional<double> figure(const char* key) const { return get<double>(key); }
    [[nodiscard]] std::optional<std::uint64_t> bytes(const char* key) const { return get<std::uint64_t>(key); }
    Status number(const char* key, int& out, int most = INT_MAX) const {
        const auto value = bytes(key);
        if (value && *value > static_cast<std::uint64_t>(most))
            return wrong(key, "is {}, at most {} makes sense", *value, most);
        if (value) out = static_cast<int>(*value);
        return {};
    }
    Status number(const char* key, std::optional<int>& out) const {
        int value = 0;
        HETERO_CHECK(number(key, value));
        if (find(key) != nullptr) out = value;
        return {};
    }
    template <class T>
    [[nodiscard]] std::vector<T> list(const char* key) const {
        std::vector<T> out;
        if (const nlohmann::json* values = find(key))
            for (const nlohmann::json& value : *values) out.push_back(value.get<T>());
        return out;
    }
    Status need(std::initializer_list<const char*> keys) const {
        for (const char* key : keys)
            if (find(key) == nullptr) return fail(Errc::bad_input, "{}: {}: lacks '{}'", *name_, path_, key);
        return {};
    }
    template <class... Args>
    [[nodiscard]] tl::unexpected<Error> wrong(const char* key, fmt::format_string<Args...> format,
                                              Args&&... args) const {
        return fail(Errc::bad_input, "{}: {}: {}", *name_, at(key), fmt::format(format, std::forward<Args>(args)...));
    }

private:
    [[nodiscard]] std::string at(const char* key) const { return path_.empty() ? key : path_ + "." + key; }
    template <class T>
    [[nodiscard]] std::optional<T> get(const char* key) const {
        const nlohmann::json* value = find(key);
        return value != nullptr ? std::optional(value->get<T>()) : std::nullopt;
    }

    const nlohmann::json* json_;
    const std::string* name_;
    std::string path_;
};

}  // namespace hetero::hw
