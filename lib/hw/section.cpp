#include "hw/section.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace hetero::hw {
namespace {

constexpr std::string_view white_space = " \t\r\n";

std::string_view trim(std::string_view text) {
    const std::size_t first = text.find_first_not_of(white_space);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(white_space) - first + 1);
}

}  // namespace

double rounded(double value) {
    if (value == 0 || !std::isfinite(value)) return value;
    const double unit = std::pow(10.0, 3 - std::floor(std::log10(std::fabs(value))));
    return std::round(value * unit) / unit;
}

std::optional<std::string> read_text(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return std::nullopt;
    constexpr std::size_t max_bytes = 1U << 20;
    std::string text;
    char buffer[4096];
    ssize_t n = 0;
    while (text.size() < max_bytes && (n = ::read(fd, buffer, sizeof buffer)) > 0) {
        text.append(buffer, static_cast<std::size_t>(n));
    }
    ::close(fd);
    if (n < 0) return std::nullopt;
    return std::string(trim(text));
}

std::optional<std::int64_t> read_integer(const std::string& path) {
    const auto text = read_text(path);
    std::int64_t value = 0;
    if (!text) return std::nullopt;
    const auto [stop, ec] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (ec != std::errc() || stop != text->data() + text->size()) return std::nullopt;
    return value;
}

std::vector<std::string> list_folder(const std::string& path) {
    std::vector<std::string> names;
    DIR* folder = ::opendir(path.c_str());
    if (folder == nullptr) return names;
    while (const dirent* entry = ::readdir(folder)) {
        if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    }
    ::closedir(folder);
    std::sort(names.begin(), names.end());
    return names;
}

std::vector<std::string> split_words(std::string_view text) {
    std::vector<std::string> words;
    while (true) {
        const std::size_t first = text.find_first_not_of(white_space);
        if (first == std::string_view::npos) return words;
        const std::size_t last = std::min(text.find_first_of(white_space, first), text.size());
        words.emplace_back(text.substr(first, last - first));
        text.remove_prefix(last);
    }
}

std::optional<std::string> line_value(std::string_view text, std::string_view label) {
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        const std::size_t colon = line.find(':');
        if (colon != std::string_view::npos && trim(line.substr(0, colon)) == label) {
            return std::string(trim(line.substr(colon + 1)));
        }
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return std::nullopt;
}

}  // namespace hetero::hw
