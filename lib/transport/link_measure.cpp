#include "transport/link_measure.h"

#include <algorithm>

namespace hetero::transport {
namespace {

constexpr std::size_t small_bytes = 64, first_bytes = 64U << 10;
constexpr int repeats = 3;  // of the size that is timed: the best counts
constexpr double long_enough_s = 2e-3;

}  // namespace

void LinkMeasure::send(TimePoint now) {
    link_->probe(++number_, bytes_);
    sent_at_ = now;
    waiting_ = true;
}

bool LinkMeasure::step(TimePoint now) {
    bool moved = link_->step(now);
    if (rate_ || link_->error()) return moved;
    if (link_->peer_left()) {
        link_->end_with({Errc::peer, fmt::format("{} ended before the link was measured", link_->options().peer)});
        return true;
    }
    if (waiting_ && link_->answered_probe() == number_) {
        waiting_ = false;
        const double seconds = std::chrono::duration<double>(now - sent_at_).count();
        patience_s_ = std::max(least_patience_s(), 2 * seconds);
        take_answer(seconds);
        moved = true;
    }
    const bool lost = waiting_ && std::chrono::duration<double>(now - sent_at_).count() > patience_s_;
    if (lost) patience_s_ *= 2;
    if (rate_ || (waiting_ && !lost)) return moved;
    send(now);
    link_->step(now);  // it leaves now
    return true;
}

void LinkMeasure::take_answer(double seconds) {
    if (bytes_ == small_bytes) {
        round_trips_s_.push_back(seconds);
        small_took_s_ += seconds;
        if (!small_probes_.enough(round_trips_s_.size(), small_took_s_)) return;
        std::vector<double> sorted = round_trips_s_;
        const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
        std::nth_element(sorted.begin(), middle, sorted.end());
        latency_s_ = *middle / 2;
        bytes_ = first_bytes;
        return;
    }
    const double carried_s = std::max(seconds - 2 * latency_s_, 1e-9);
    if (max_rate_ > 0 && static_cast<double>(bytes_) >= max_rate_ * carried_s) {
        rate_ = LinkRate{latency_s_, max_rate_};
        return;
    }
    if (carried_s < long_enough_s && bytes_ < max_probe_bytes) {
        bytes_ *= 2;
        return;
    }
    best_rate_ = std::max(best_rate_, static_cast<double>(bytes_) / carried_s);
    if (++same_size_ == repeats) rate_ = LinkRate{latency_s_, best_rate_};
}

}  // namespace hetero::transport
