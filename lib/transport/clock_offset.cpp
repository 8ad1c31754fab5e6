#include "transport/clock_offset.h"

namespace hetero::transport {

bool ClockOffset::step(TimePoint now) {
    using std::chrono::nanoseconds;
    if (done() || link_->error()) return false;
    bool moved = false;
    if (waiting_ && link_->answered_probe() == number_) {
        waiting_ = false;
        ++answered_;
        moved = true;
        const auto round_trip = std::chrono::duration_cast<nanoseconds>(now - sent_);
        if (const auto& theirs = link_->answered_time(); theirs && (!offset_ || round_trip < best_)) {
            const auto ours = std::chrono::duration_cast<nanoseconds>(sent_.time_since_epoch()) + round_trip / 2;
            offset_ = *theirs - ours;
            best_ = round_trip;
        }
    } else if (waiting_ && now - sent_ > patience) {
        waiting_ = false;
        ++lost_;
    }
    if (!waiting_ && !done()) {
        link_->probe(++number_, 1);
        sent_ = now;
        waiting_ = true;
        moved = true;
    }
    return moved;
}

}  // namespace hetero::transport
