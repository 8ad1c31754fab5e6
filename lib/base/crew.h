// How many workers a pool asks to its loops. A worker that has begun a task and then loses its core to a neighbour of
// the machine holds up all others, for a time slice of milliseconds where a loop takes microseconds; two threads beside
// one busy neighbour are so slower than one. The pool does without as many workers as it met without a core, and asks
// them again after a pause, one by one; a pause that was too short is followed by one twice as long.
#pragma once
#include <algorithm>
#include <chrono>

namespace hetero {

class Crew {
public:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::milliseconds shortest_pause{10}, longest_pause{640};

    explicit Crew(int workers) noexcept : workers_(workers), asked_(workers) {}

    [[nodiscard]] bool is_whole() const noexcept { return asked_ == workers_; }
    [[nodiscard]] int asked() const noexcept { return asked_; }
    // The same at this time, when a pause may be over.
    int asked(Clock::time_point now) noexcept {
        if (is_whole() || now < next_) return asked_;
        ++asked_;
        grown_ = now;
        next_ = now + pause_;
        return asked_;
    }
    // So many of those who were asked had no core while they were waited for.
    void lost(int workers, Clock::time_point now) noexcept {
        if (workers <= 0) return;
        const bool too_soon = pause_ != pause_.zero() && now - grown_ < pause_;
        pause_ = too_soon ? std::min<Clock::duration>(2 * pause_, longest_pause) : shortest_pause;
        asked_ = std::max(0, asked_ - workers);
        next_ = now + pause_;
    }

private:
    int workers_, asked_;
    Clock::duration pause_{};             // after the last loss; 0: there was none
    Clock::time_point grown_{}, next_{};  // when a worker was asked again, and when the next one is
};

}  // namespace hetero
