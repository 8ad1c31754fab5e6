// How far the peer's time line (base/trace.h) is from this process's clock, from the round trips of some small probes,
// which the peer's link answers with its time. The quickest counts: the answer was given somewhere within it, so that
// the error is at most half of it (RFC 5905, section 8, has the same formula).
#pragma once
#include <chrono>
#include <optional>

#include "transport/link.h"

namespace hetero::transport {

class ClockOffset {
public:
    explicit ClockOffset(Link& link) : link_(&link) {}
    // After the link's own step. Returns whether anything moved.
    bool step(TimePoint now);
    [[nodiscard]] bool done() const noexcept { return answered_ + lost_ >= probes; }
    // Peer's minus ours; none where no probe was answered.
    [[nodiscard]] const std::optional<std::chrono::nanoseconds>& offset() const noexcept { return offset_; }
    [[nodiscard]] std::chrono::nanoseconds round_trip() const noexcept { return best_; }

private:
    static constexpr int probes = 16;
    static constexpr auto patience = std::chrono::milliseconds(250);  // a peer may compute on all cores

    Link* link_;
    int answered_ = 0, lost_ = 0;
    bool waiting_ = false;
    std::uint32_t number_ = 0x80000000;  // apart from those of LinkMeasure
    TimePoint sent_{};
    std::optional<std::chrono::nanoseconds> offset_;
    std::chrono::nanoseconds best_{};
};

}  // namespace hetero::transport
