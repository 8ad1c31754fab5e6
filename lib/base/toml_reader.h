// A table of a TOML document of ours, read strictly: what is there must be known, of the right kind and in range.
// Messages are "FILE:LINE: ...".
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/toml.h"

namespace hetero {

class TomlReader {
public:
    // `table` and `file` outlive the reader. `path` says in messages what the table is: "[gate]".
    TomlReader(const TomlNode& table, const std::string& file, std::string path)
        : table_(table), file_(file), path_(std::move(path)) {}

    // Keys that such a document does not have are refused, naming the nearest: a misspelt one must not pass for one
    // left out.
    [[nodiscard]] Status only(std::span<const std::string_view> known) const;
    [[nodiscard]] Status only(std::initializer_list<std::string_view> known) const {
        return only(std::span(known.begin(), known.size()));
    }

    // What the file says of itself; `expected` is the one that is read.
    Status version(std::string_view key, std::uint64_t expected) const;

    [[nodiscard]] bool has(std::string_view key) const noexcept { return table_.find(key) != nullptr; }
    // Each fails where the key is absent, of another kind or out of range; `out` is then as it was.
    Status text(std::string_view key, std::string& out) const;
    Status flag(std::string_view key, bool& out) const;
    Status digest(std::string_view key, Digest& out) const;
    // Finite, in [0, max].
    Status real(std::string_view key, double& out, double max = 1e300) const;
    template <class T>
    Status count(std::string_view key, T& out, std::uint64_t max) const {
        std::uint64_t value = 0;
        HETERO_CHECK(count_up_to(key, value, max));
        out = static_cast<T>(value);
        return {};
    }

    // nullopt where the key is absent; whether it is a table is only()'s to say.
    [[nodiscard]] std::optional<TomlReader> table(std::string_view key) const;
    Result<std::vector<TomlReader>> tables(std::string_view key, std::size_t max) const;
    Result<const TomlNode*> need(std::string_view key) const;

    // bad_input at the place of this table, or of the value of one of its keys.
    template <class... Args>
    [[nodiscard]] tl::unexpected<Error> wrong(fmt::format_string<Args...> format, Args&&... args) const {
        return error_at(table_, fmt::format(format, std::forward<Args>(args)...));
    }
    template <class... Args>
    [[nodiscard]] tl::unexpected<Error> wrong_value(std::string_view key, fmt::format_string<Args...> format,
                                                    Args&&... args) const {
        const TomlNode* node = table_.find(key);
        return error_at(node != nullptr ? *node : table_, fmt::format(format, std::forward<Args>(args)...));
    }

private:
    [[nodiscard]] tl::unexpected<Error> error_at(const TomlNode& at, std::string_view message) const;
    Status count_up_to(std::string_view key, std::uint64_t& out, std::uint64_t max) const;

    const TomlNode& table_;
    const std::string& file_;
    std::string path_;
};

}  // namespace hetero
