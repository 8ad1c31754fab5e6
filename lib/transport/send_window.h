// How much of a transfer is on its way at a time, on a link that was measured. The length of its chunks does not follow
// from the link: it belongs to the state, which is the same bytes however it came, and the same pieces when a transfer
// goes on.
#pragma once
#include <cstdint>

#include "transport/link_rate.h"

namespace hetero::transport {

inline constexpr std::uint64_t least_window_bytes = 4U << 20, most_window_bytes = 256U << 20;

struct SendWindow {
    std::uint64_t bytes = 16U << 20;  // unacknowledged; of a link that was not measured
    // Of these, in the hands of the carrier: Open MPI sends all messages that it has by turns, over TCP the slower the
    // more there are.
    std::uint64_t in_flight_bytes = least_window_bytes;
};

// What the link carries in two round trips and 30 ms, in which a rank may have to wait for a core; and in two round
// trips.
[[nodiscard]] SendWindow window_for(const LinkRate& rate) noexcept;

}  // namespace hetero::transport
