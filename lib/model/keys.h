// The keys of a model's configuration, read the same way from a config.json and from a GGUF's metadata.
// Every key that is read is remembered, so that a key nobody asked for can be refused instead of overlooked.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace hetero::io {
class GgufFile;
}

namespace hetero::model {

class Keys {
public:
    struct Compound {  // an array or a deeply nested object: never read as a number
        bool empty = false;
        std::string text;
        std::optional<std::vector<std::string>> strings;    // of an array that holds nothing else
        std::optional<std::vector<std::int64_t>> integers;  // likewise
    };
    using Value = std::variant<std::monostate, std::int64_t, double, bool, std::string, Compound>;

    // Nested objects become "outer.inner". `file` is for messages.
    static Result<Keys> from_json(std::string file, std::string_view text);
    static Keys from_gguf(const io::GgufFile& gguf);

    [[nodiscard]] const std::string& file() const noexcept { return file_; }

    // Missing or null: nullopt. Another type, or outside [low, high]: bad_input naming file, key and value.
    Result<std::optional<std::int64_t>> integer(std::string_view key, std::int64_t low, std::int64_t high);
    Result<std::optional<double>> number(std::string_view key, double low, double high);
    Result<std::optional<bool>> boolean(std::string_view key);
    Result<std::optional<std::string>> text(std::string_view key);
    // An array as JSON text, for messages; nullopt where missing.
    std::optional<std::string> compound_text(std::string_view key);
    // An array of strings, or of integers.
    Result<std::optional<std::vector<std::string>>> texts(std::string_view key);
    Result<std::optional<std::vector<std::int64_t>>> integers(std::string_view key);
    // Given at all, if only as null; a name that ends in '*' is a prefix. Does not count as read.
    [[nodiscard]] bool has(std::string_view key) const;

    // A number of things, at least 1; missing is an error, unless there is a fallback.
    Result<std::uint32_t> count(std::string_view key, std::uint32_t high,
                                std::optional<std::uint32_t> fallback = std::nullopt);

    // Keys whose only implemented value is the given one; missing and null mean that value.
    Status only_text(std::string_view key, std::string_view implemented);
    Status only_flag(std::string_view key, bool implemented);
    Status only_number(std::string_view key, double implemented);

    // Keys that cannot change the arithmetic. A name that ends in '*' is a prefix.
    void harmless(std::initializer_list<std::string_view> keys);
    // Refuses the first key that starts with `prefix`, was neither read nor harmless, and is not switched off
    // (null, false or empty): whether it changes the arithmetic is not known, and is not guessed.
    [[nodiscard]] Status refuse_unread(std::string_view prefix) const;

private:
    const Value* find(std::string_view key);
    std::string file_;
    std::map<std::string, Value, std::less<>> values_;
    std::set<std::string, std::less<>> read_;
};

}  // namespace hetero::model
