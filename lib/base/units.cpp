#include "base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace hetero {
namespace {

template <class T>
bool parse_all(std::string_view text, T& value) {
    const char* end = text.data() + text.size();
    auto [stop, ec] = std::from_chars(text.data(), end, value);
    return ec == std::errc() && stop == end && !text.empty();
}

struct Suffix {
    std::string_view text;
    std::uint64_t factor;
};
constexpr std::array<Suffix, 9> size_suffixes{{{"Ki", 1ULL << 10},
                                               {"Mi", 1ULL << 20},
                                               {"Gi", 1ULL << 30},
                                               {"Ti", 1ULL << 40},
                                               {"K", 1'000},
                                               {"M", 1'000'000},
                                               {"G", 1'000'000'000},
                                               {"T", 1'000'000'000'000},
                                               {"", 1}}};

}  // namespace

Result<std::uint64_t> parse_size_bytes(std::string_view text) {
    std::string_view rest = text;
    if (rest.ends_with('B')) rest.remove_suffix(1);
    for (const Suffix& suffix : size_suffixes) {
        if (!rest.ends_with(suffix.text)) continue;
        std::string_view digits = rest.substr(0, rest.size() - suffix.text.size());
        std::uint64_t value = 0;
        if (!parse_all(digits, value)) break;
        if (value > std::numeric_limits<std::uint64_t>::max() / suffix.factor) break;
        return value * suffix.factor;
    }
    return fail(Errc::usage, "'{}' is not a size (examples: 4096, 64K, 64Ki, 2G, 2Gi)", text);
}

Result<double> parse_duration_s(std::string_view text) {
    std::string_view digits = text;
    double factor = 1;
    if (digits.ends_with("ms")) {
        factor = 1e-3;
        digits.remove_suffix(2);
    } else if (digits.ends_with('s')) {
        digits.remove_suffix(1);
    } else if (digits.ends_with('m')) {
        factor = 60;
        digits.remove_suffix(1);
    }
    auto value = parse_finite(digits);
    if (!value || *value < 0 || *value * factor > 1e6) {
        return fail(Errc::usage, "'{}' is not a duration (examples: 250ms, 1.5s, 2m)", text);
    }
    return *value * factor;
}

Result<double> parse_finite(std::string_view text) {
    double value = 0;
    if (!parse_all(text, value) || !std::isfinite(value)) {
        return fail(Errc::usage, "'{}' is not a finite decimal number", text);
    }
    return value;
}

Result<std::int64_t> parse_integer(std::string_view text) {
    std::int64_t value = 0;
    if (!parse_all(text, value)) return fail(Errc::usage, "'{}' is not an integer", text);
    return value;
}

std::string format_bytes(std::uint64_t bytes) {
    constexpr std::array<const char*, 5> names{"B", "KiB", "MiB", "GiB", "TiB"};
    auto value = static_cast<double>(bytes);
    std::size_t i = 0;
    while (value >= (i == 0 ? 1024 : 1023.95) && i + 1 < names.size()) {  // never shows 1024.0
        value /= 1024;
        ++i;
    }
    return i == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, names[i]);
}

}  // namespace hetero
