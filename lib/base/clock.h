// Durations of the steady clock as the numbers that reports hold.
#pragma once
#include <chrono>

namespace hetero {

[[nodiscard]] inline double to_seconds(std::chrono::steady_clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
}
[[nodiscard]] inline double to_milliseconds(std::chrono::steady_clock::duration duration) {
    return std::chrono::duration<double, std::milli>(duration).count();
}
[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
    return to_seconds(std::chrono::steady_clock::now() - start);
}
[[nodiscard]] inline double milliseconds_since(std::chrono::steady_clock::time_point start) {
    return to_milliseconds(std::chrono::steady_clock::now() - start);
}

}  // namespace hetero
