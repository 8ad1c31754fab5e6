#include "base/config.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/printable.h"
#include "base/toml.h"
#include "base/toml_table.h"
#include "base/units.h"

namespace hetero {
namespace {

constexpr std::size_t max_file_bytes = 1U << 20;

std::string with_dashes(std::string_view key) {
    std::string text(key);
    std::replace(text.begin(), text.end(), '_', '-');
    return text;
}

// The text of a string, number or boolean, as a command line would have it.
std::optional<std::string> scalar_text(const toml::node& node) {
    if (const auto* value = node.as_string()) return value->get();
    if (const auto* value = node.as_integer()) return fmt::format("{}", value->get());
    if (const auto* value = node.as_floating_point())
        return fmt::format("{}", value->get());  // shortest that reads back the same
    if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
    return std::nullopt;
}

std::optional<std::vector<std::string>> values_of(const toml::node& node) {
    std::vector<std::string> values;
    if (const toml::array* array = node.as_array()) {
        for (const toml::node& element : *array) {
            auto text = scalar_text(element);
            if (!text) return std::nullopt;
            values.push_back(std::move(*text));
        }
        return values.empty() ? std::nullopt : std::optional(std::move(values));
    }
    auto text = scalar_text(node);
    if (!text) return std::nullopt;
    values.push_back(std::move(*text));
    return values;
}

std::string place(const std::string& path, const toml::node& node) {
    return fmt::format("{}:{}", path, node.source().begin.line);
}

bool is_digits(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Numbers and booleans that TOML can hold as such; everything else is a quoted string.
bool is_plain_toml(std::string_view text) {
    if (text == "true" || text == "false") return true;
    std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
    const std::size_t dot = digits.find('.');
    const std::string_view whole = digits.substr(0, dot);
    if (!is_digits(whole) || (whole.size() > 1 && whole[0] == '0')) return false;
    return dot == std::string_view::npos ? parse_integer(text).has_value() : is_digits(digits.substr(dot + 1));
}

std::string toml_value(std::string_view text) {
    if (is_plain_toml(text)) return std::string(text);
    return toml_string(text);
}

}  // namespace

std::string environment_name(std::string_view key) {
    std::string name = "HETERO_";
    for (const char c : key) name += c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    return name;
}

namespace {

struct Nearest {
    std::string_view name;
    std::size_t changes = static_cast<std::size_t>(-1);
};
Nearest find_nearest(std::string_view word, std::span<const std::string_view> known) {
    // Optimal string alignment distance, three rows of the table at a time.
    auto distance = [word](std::string_view other) {
        std::vector<std::size_t> before(other.size() + 1), last(other.size() + 1), row(other.size() + 1);
        for (std::size_t j = 0; j <= other.size(); ++j) last[j] = j;
        for (std::size_t i = 1; i <= word.size(); ++i) {
            row[0] = i;
            for (std::size_t j = 1; j <= other.size(); ++j) {
                const bool same = word[i - 1] == other[j - 1];
                row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
                const bool swapped = i > 1 && j > 1 && word[i - 1] == other[j - 2] && word[i - 2] == other[j - 1];
                if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
            }
            std::swap(before, last);
            std::swap(last, row);
        }
        return last[other.size()];
    };
    constexpr std::size_t longest = 64;  // the table is the product of both lengths, and the word comes from outside
    word = word.substr(0, longest);
    Nearest nearest;
    for (const std::string_view name : known) {
        const std::size_t changes = distance(name);
        if (changes < nearest.changes) nearest = {name, changes};
    }
    return nearest;
}

}  // namespace

std::string_view nearest_name(std::string_view word, std::span<const std::string_view> known) {
    return find_nearest(word, known).name;
}

std::string_view meant_name(std::string_view word, std::span<const std::string_view> known) {
    const Nearest nearest = find_nearest(word, known);
    return nearest.changes <= std::max(word.size(), nearest.name.size()) / 3 ? nearest.name : std::string_view();
}

const Setting* Config::slot(std::string_view key) const {
    const std::string wanted = with_dashes(key);
    const auto found =
        std::find_if(settings_.begin(), settings_.end(), [&](const Setting& s) { return s.key == wanted; });
    return found == settings_.end() ? nullptr : &*found;
}

void Config::offer(std::string_view key, std::vector<std::string> values, Origin origin, std::string where) {
    const std::string wanted = with_dashes(key);
    for (Setting& setting : settings_) {
        if (setting.key != wanted || (!setting.values.empty() && origin < setting.origin)) continue;
        setting = {wanted, std::move(values), origin, std::move(where)};
        return;
    }
}

Result<Config> Config::load(const SettingNames& names, const std::string& path) {
    Config config;
    for (const std::string_view key : names.keys)
        config.settings_.push_back({with_dashes(key), {}, Origin::fallback, {}});

    auto read_table = [&](const toml::table& table, bool top) -> Status {
        std::vector<std::string> seen;
        for (const auto& [toml_key, node] : table) {
            const std::string key = with_dashes(toml_key.str());
            if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
                return fail(Errc::usage, "{}: '{}' is set twice, once with '-' and once with '_'", place(path, node),
                            key);
            }
            seen.push_back(key);
            if (top && node.is_table() && std::find(names.tools.begin(), names.tools.end(), key) != names.tools.end())
                continue;
            if (config.slot(key) == nullptr) {
                std::vector<std::string_view> candidates(names.keys.begin(), names.keys.end());
                if (top) candidates.insert(candidates.end(), names.tools.begin(), names.tools.end());
                return fail(Errc::usage, "{}: '{}' is no setting of {}; the nearest one is '{}'", place(path, node),
                            printable(toml_key.str()), names.tool, nearest_name(key, candidates));
            }
            auto values = values_of(node);
            if (!values) {
                return fail(Errc::usage, "{}: '{}' must be a string, number, boolean or a list of these",
                            place(path, node), printable(toml_key.str()));
            }
            config.offer(key, std::move(*values), Origin::file, place(path, node));
        }
        return {};
    };
    if (!path.empty()) {
        HETERO_TRY(const std::string text, read_text_file(path, max_file_bytes, "configuration file"));
        try {
            HETERO_TRY(const toml::table file, parse_toml_table(text, path));
            HETERO_CHECK(read_table(file, true));
            for (const auto& [key, node] : file) {
                if (with_dashes(key.str()) != names.tool || !node.is_table()) continue;
                HETERO_CHECK(read_table(*node.as_table(), false));
            }
        } catch (const std::bad_alloc&) {
            return fail(Errc::resource, "{}: not enough memory to read it", path);
        }
    }
    for (const std::string_view key : names.keys) {
        const std::string name = environment_name(with_dashes(key));
        const char* value = std::getenv(name.c_str());
        if (value != nullptr && *value != '\0') config.offer(key, {value}, Origin::environment, name);
    }
    return config;
}

void Config::set_flag(std::string_view key, std::vector<std::string> values) {
    offer(key, std::move(values), Origin::flag, "--" + with_dashes(key));
}

void Config::set_default(std::string_view key, std::vector<std::string> values) {
    offer(key, std::move(values), Origin::fallback, "default");
}

const Setting* Config::find(std::string_view key) const {
    const Setting* setting = slot(key);
    return setting == nullptr || setting->values.empty() ? nullptr : setting;
}

std::string Config::dump() const {
    std::string out;
    for (const Setting& setting : settings_) {
        std::string value;
        for (const std::string& text : setting.values) value += (value.empty() ? "" : ", ") + toml_value(text);
        if (setting.values.empty()) {
            out += fmt::format("# {} is not set\n", setting.key);
        } else if (setting.values.size() == 1) {
            out += fmt::format("{} = {}  # {}\n", setting.key, value, setting.where);
        } else {
            out += fmt::format("{} = [{}]  # {}\n", setting.key, value, setting.where);
        }
    }
    return out;
}

}  // namespace hetero
