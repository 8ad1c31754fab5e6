#include "common/progress.h"

#include <unistd.h>

#include <cstdio>

namespace hetero::tool {

Progress::Progress(const Tool& tool, std::string label, std::uint64_t total, std::string unit)
    : enabled_(tool.show_progress()),
      terminal_(isatty(STDERR_FILENO) == 1),
      label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() {
    if (drawn_ && terminal_) std::fputs("\r\033[K", stderr);
}

void Progress::update(std::uint64_t done) {
    if (!enabled_) return;
    const Clock::time_point now = Clock::now();
    if (done < total_ && now - last_ < std::chrono::milliseconds(terminal_ ? 100 : 1000)) return;
    last_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    std::string line = fmt::format("{}: {}/{} {}, {:.1f} {}/s", label_, done, total_, unit_, rate, unit_);
    if (rate > 0 && done < total_) line += fmt::format(", {:.0f} s left", static_cast<double>(total_ - done) / rate);
    std::fputs((terminal_ ? "\r\033[K" + line : line + "\n").c_str(), stderr);
    std::fflush(stderr);
    drawn_ = true;
}

}  // namespace hetero::tool
