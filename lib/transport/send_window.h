// How much of a transfer is on its way at a time, on a link that was measured. The length of its chunks does not follow
// from the link: it belongs to the state, which is the same bytes however it came, and the same pieces when a transfer
// goes on.
#pragma once
#include <cstddef>
#include <cstdint>

#include "transport/link_rate.h"

namespace hetero::transport {

inline constexpr std::uint64_t least_window_bytes = 8U << 20, most_window_bytes = 256U << 20,
                               least_in_flight_bytes = 4U << 20;

struct SendWindow {
    // Whatever their size: one is under way while the last one is verified.
    static constexpr std::size_t least_pieces = 2;
    std::uint64_t bytes = 16U << 20;  // unacknowledged; of a link that was not measured
    // Of these, in the hands of the carrier: Open MPI sends all messages that it has by turns, over TCP the slower the
    // more there are.
    std::uint64_t in_flight_bytes = least_in_flight_bytes;
};

// What the link carries in two round trips, for `bytes` also until a peer that rests looks for frames. No more: what is
// summed up long before it is sent has left the cache by then.
[[nodiscard]] SendWindow window_for(const LinkRate& rate) noexcept;

}  // namespace hetero::transport
