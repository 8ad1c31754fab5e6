// Holds a sender to so many bytes per second: in any time t no more than rate * t leave, and one frame and a burst of
// 20 ms besides.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace hetero::transport {

class TokenBucket {
public:
    using TimePoint = std::chrono::steady_clock::time_point;
    explicit TokenBucket(std::uint64_t bytes_per_s = 0) : rate_(static_cast<double>(bytes_per_s)) {}  // 0: no limit

    // A frame may leave, whatever its size: the debt that it makes keeps the next one back.
    [[nodiscard]] bool open() const noexcept { return rate_ == 0 || tokens_ > 0; }
    void take(std::uint64_t bytes) noexcept { tokens_ -= static_cast<double>(bytes); }
    void refill(TimePoint now) noexcept {
        if (!last_) tokens_ = burst();
        if (last_ && now > *last_)
            tokens_ = std::min(burst(), tokens_ + rate_ * std::chrono::duration<double>(now - *last_).count());
        last_ = now;
    }

private:
    [[nodiscard]] double burst() const noexcept { return rate_ * 0.02; }
    double rate_, tokens_ = 0;
    std::optional<TimePoint> last_;
};

}  // namespace hetero::transport
