// Spans of time for a trace file in the Trace Event Format, which chrome://tracing and ui.perfetto.dev show
// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). Where tracing is off a span costs
// one load and a branch.
#pragma once
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace hetero::trace {

using Clock = std::chrono::steady_clock;

namespace detail {
extern std::atomic<bool> on;
}

// From now on spans are kept, in memory.
void start();
[[nodiscard]] inline bool on() noexcept { return detail::on.load(std::memory_order_relaxed); }

// A span on one of this process's tracks ("prefill", "transfer"); spans of a track follow each other or lie within each
// other. Any thread.
void add(std::string_view track, std::string name, Clock::time_point begin, Clock::time_point end);

// What this process's clock lacks of the time line's, to which it belongs with others: it is added to all spans,
// earlier ones too.
void set_offset(std::chrono::nanoseconds offset);
// A time of this process's clock on that time line.
[[nodiscard]] std::chrono::nanoseconds on_time_line(Clock::time_point time);

// All spans so far as a JSON document, in microseconds of the time line. `process` and its `number` name
// this process among those of other files.
[[nodiscard]] std::string document(std::string_view process, std::uint64_t number);

// From here to the end of the block.
class Span {
public:
    template <class... Args>
    explicit Span(std::string_view track, fmt::format_string<Args...> name, Args&&... args) : track_(track) {
        if (!on()) return;
        name_ = fmt::format(name, std::forward<Args>(args)...);
        begin_ = Clock::now();
    }
    ~Span() {
        if (begin_ != Clock::time_point()) add(track_, std::move(name_), begin_, Clock::now());
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

private:
    std::string_view track_;
    std::string name_;
    Clock::time_point begin_{};
};

}  // namespace hetero::trace
