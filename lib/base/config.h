// Settings of a tool and where each came from: command line, environment, configuration file (TOML), or default.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hetero {

enum class Origin { fallback, file, environment, flag };  // the later one wins

// Values stay text, as on a command line: the option that takes them parses them, so that "0,01" is the same error
// wherever it stands.
struct Setting {
    std::string key;                  // "kv-dtype"
    std::vector<std::string> values;  // one, or the elements of a list; empty: not set
    Origin origin = Origin::fallback;
    std::string where;  // "--kv-dtype", "HETERO_KV_DTYPE", "hetero.toml:3", "default"
};

// Which settings there are. Keys are option names without the dashes; '-' and '_' are the same in all places.
struct SettingNames {
    std::string_view tool;                    // "hetero-prefill": the name of its table in the file
    std::span<const std::string_view> keys;   // of this tool
    std::span<const std::string_view> tools;  // all tools: their tables are no error in a file that tools share
};

class Config {
public:
    // Reads HETERO_<KEY> for each key (an empty one counts as not set), and the file `path` unless that is empty. In
    // the file, keys at the top hold for every tool and must be known to the one that reads them; keys in the table of
    // a tool hold for that tool, and win. Values are strings, numbers, booleans or flat lists of these. Errors:
    // bad_input for a file that cannot be read or parsed, usage for an unknown key (the nearest known one is named) or
    // a value of another kind; with file and line.
    static Result<Config> load(const SettingNames& names, const std::string& path);

    // What the command line and the tool itself say.
    void set_flag(std::string_view key, std::vector<std::string> values);
    void set_default(std::string_view key, std::vector<std::string> values);

    // nullptr where neither the file nor environment, flags or defaults give a value.
    [[nodiscard]] const Setting* find(std::string_view key) const;
    [[nodiscard]] const std::vector<Setting>& settings() const noexcept {
        return settings_;
    }  // in the order of the keys

    // One line each, valid TOML: `kv-dtype = "bf16"  # HETERO_KV_DTYPE`. Keys without a value are comments.
    [[nodiscard]] std::string dump() const;

private:
    [[nodiscard]] const Setting* slot(std::string_view key) const;
    void offer(std::string_view key, std::vector<std::string> values, Origin origin, std::string where);
    std::vector<Setting> settings_;
};

// "kv-dtype" -> "HETERO_KV_DTYPE".
[[nodiscard]] std::string environment_name(std::string_view key);

// Of `known` the one that takes the fewest changes (insert, delete, replace, swap neighbours); empty if `known` is.
[[nodiscard]] std::string_view nearest_name(std::string_view word, std::span<const std::string_view> known);
// The same where it takes so few that it may have been meant, a change for three characters; else empty.
[[nodiscard]] std::string_view meant_name(std::string_view word, std::span<const std::string_view> known);

}  // namespace hetero
