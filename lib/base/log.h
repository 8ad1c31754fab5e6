// The library never prints. What a person may want to know goes to this sink, which is silent until a tool sets one.
#pragma once
#include <fmt/format.h>

#include <functional>
#include <string_view>

namespace hetero::log {

enum class Level { debug, info, warn, error };

using Sink = std::function<void(Level, std::string_view)>;  // may be called by several threads at once

void set_sink(Sink sink, Level threshold);  // not thread-safe: call once, before other threads start
[[nodiscard]] bool enabled(Level level) noexcept;
void write(Level level, std::string_view message);

template <class... Args>
void emit(Level level, fmt::format_string<Args...> format, Args&&... args) {
    if (enabled(level)) write(level, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
    emit(Level::debug, format, std::forward<Args>(args)...);
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
    emit(Level::info, format, std::forward<Args>(args)...);
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
    emit(Level::warn, format, std::forward<Args>(args)...);
}

}  // namespace hetero::log
