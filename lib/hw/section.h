// What probes share: the tree they write to, and reading small files of /proc and /sys.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/limits.h"
#include "hw/probe.h"

namespace hetero::hw {

using Json = nlohmann::ordered_json;

inline constexpr const char* not_measured = "not measured: measuring was turned off";
inline constexpr const char* not_recorded = "not part of a recorded machine";

struct Context {
    const ProbeOptions& options;
    SystemLimits limits;
    int threads = 1;  // of the probes that use all threads
    [[nodiscard]] bool recorded() const { return !options.root.empty(); }
    // Why nothing is measured; null: it is.
    [[nodiscard]] const char* measures_nothing() const {
        return recorded() ? not_recorded : options.measure ? nullptr : not_measured;
    }
    [[nodiscard]] std::string path(std::string_view absolute) const { return options.root + std::string(absolute); }
};

// A probe returns the content of its section.
using Probe = Json (*)(const Context&);

// name = null, NAME_unknown = reason.
inline void put_unknown(Json& section, const std::string& name, const std::string& reason) {
    section[name] = nullptr;
    section[name + "_unknown"] = reason;
}
template <class T>
void put(Json& section, const std::string& name, const std::optional<T>& value, const std::string& reason) {
    if (value) {
        section[name] = *value;
    } else {
        put_unknown(section, name, reason);
    }
}

// An entry for what has no executable path here.
[[nodiscard]] inline Json unsupported(Json entry, const std::string& reason) {
    entry["executable"] = false;
    entry["unsupported"] = reason;
    return entry;
}

[[nodiscard]] double rounded(double value);  // 4 significant digits: no measured rate has more

// Content without surrounding white space; nothing where the file cannot be read. At most 1 MiB.
[[nodiscard]] std::optional<std::string> read_text(const std::string& path);
[[nodiscard]] std::optional<std::int64_t> read_integer(const std::string& path);
[[nodiscard]] std::vector<std::string> list_folder(const std::string& path);  // sorted names; empty where there is none
[[nodiscard]] std::vector<std::string> split_words(std::string_view text);
// The rest of the first line "label : rest".
[[nodiscard]] std::optional<std::string> line_value(std::string_view text, std::string_view label);

[[nodiscard]] std::string to_toml(const Json& document);
[[nodiscard]] std::string to_summary(const Json& document);

}  // namespace hetero::hw
