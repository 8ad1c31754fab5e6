#include "base/toml.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <optional>

#include "base/errno_text.h"
#include "base/printable.h"
#include "base/toml_table.h"

namespace hetero {
namespace {

// nullopt: a date or time.
std::optional<TomlNode> plain(const toml::node& node) {
    TomlNode out;
    out.line = node.source().begin.line;
    if (const auto* text = node.as_string()) {
        out.value = text->get();
    } else if (const auto* integer = node.as_integer()) {
        out.value = integer->get();
    } else if (const auto* real = node.as_floating_point()) {
        out.value = real->get();
    } else if (const auto* boolean = node.as_boolean()) {
        out.value = boolean->get();
    } else if (const auto* array = node.as_array()) {
        TomlNode::Array values;
        for (const toml::node& element : *array) {
            auto value = plain(element);
            if (!value) return std::nullopt;
            values.push_back(std::move(*value));
        }
        out.value = std::move(values);
    } else if (const auto* table = node.as_table()) {
        TomlNode::Table values;
        for (const auto& [key, element] : *table) {
            auto value = plain(element);
            if (!value) return std::nullopt;
            values.emplace_back(std::string(key.str()), std::move(*value));
        }
        out.value = std::move(values);
    } else {
        return std::nullopt;
    }
    return out;
}

Status check_toml_depth(std::string_view text, const std::string& name) {
    constexpr int max_dots = 64;
    int dots = 0;
    std::uint32_t line = 1;
    std::string_view quote;  // of the string that is open
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '\n') ++line;
        if (!quote.empty()) {
            if (c == '\\' && quote[0] == '"') {
                ++i;
            } else if (text.substr(i).starts_with(quote) || (c == '\n' && quote.size() == 1)) {
                i += quote.size() - 1;
                quote = {};
            }
        } else if (c == '"' || c == '\'') {
            quote = text.substr(i, text.substr(i).starts_with(std::string(3, c)) ? 3 : 1);
            i += quote.size() - 1;
        } else if (c == '#') {
            i = std::min(text.find('\n', i), text.size()) - 1;
        } else if (c == '\n' || c == '=' || c == ',' || c == '{' || c == '[') {
            dots = 0;
        } else if (c == '.' && ++dots > max_dots) {
            return fail(Errc::bad_input, "{}:{}: a key of more than {} parts", name, line, max_dots);
        }
    }
    return {};
}

}  // namespace

const TomlNode* TomlNode::find(std::string_view key) const noexcept {
    const Table* table = as<Table>();
    if (table == nullptr) return nullptr;
    const auto found =
        std::find_if(table->begin(), table->end(), [key](const auto& entry) { return entry.first == key; });
    return found == table->end() ? nullptr : &found->second;
}

Result<toml::table> parse_toml_table(std::string_view text, const std::string& name) {
    HETERO_CHECK(check_toml_depth(text, name));
    try {
        return toml::parse(text, name);
    } catch (const toml::parse_error& error) {
        return fail(Errc::bad_input, "{}:{}: {}", name, error.source().begin.line, printable(error.description(), 200));
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory to read it", name);
    }
}

Result<TomlNode> parse_toml(std::string_view text, const std::string& name) try {
    HETERO_TRY(const toml::table file, parse_toml_table(text, name));
    auto document = plain(file);
    if (!document) return fail(Errc::bad_input, "{}: dates and times have no meaning here", name);
    return std::move(*document);
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "{}: not enough memory to read it", name);
}

// A pipe works as well as a file: `--config <(...)`.
Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes, std::string_view what) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return fail(open_errc(errno), "{}: cannot open {}: {}", path, what, errno_text(errno));
    std::string text;
    char buffer[16384];
    ssize_t n = 0;
    while (text.size() <= max_bytes && ((n = ::read(fd, buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR))) {
        if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
    }
    const int error = n < 0 ? errno : 0;
    ::close(fd);
    if (error != 0) return fail(Errc::bad_input, "{}: cannot read {}: {}", path, what, errno_text(error));
    if (text.size() > max_bytes) return fail(Errc::bad_input, "{}: {} has over {} bytes", path, what, max_bytes);
    return text;
}

std::string toml_string(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (c == '\n' || c == '\t') {
            out += c == '\n' ? "\\n" : "\\t";
        } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
            out += fmt::format("\\u{:04X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        } else {
            out += c;
        }
    }
    return out + '"';
}

std::string toml_real(double value) {
    std::string text = fmt::format("{}", value);
    if (text.find_first_of(".en") == std::string::npos) text += ".0";
    return text;
}

}  // namespace hetero
