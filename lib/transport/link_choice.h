// How to use a link that was measured: how long its chunks are, and how much of them is on its way at a time.
#pragma once
#include <cstdint>

#include "transport/link_rate.h"

namespace hetero::transport {

struct LinkChoice {
    std::uint64_t chunk_bytes = 0;   // a power of two, 64 KiB to 1 MiB
    std::uint64_t window_bytes = 0;  // unacknowledged
};

// Chunks that the link carries for 1 ms, rounded up: a frame takes 5 to 20 us of work beside its bytes. None above
// 1 MiB: one is verified while the cache still has it. The window is what the link carries in two round trips and 10
// ms, in which a rank may have to wait for a core; at least four chunks and 1 MiB.
[[nodiscard]] LinkChoice choose_for(const LinkRate& rate) noexcept;

}  // namespace hetero::transport
