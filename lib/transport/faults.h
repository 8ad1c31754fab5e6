// Faults on purpose, for tests of this module and drills of whole pipelines: what is to go wrong with the frames that
// one side sends.
#pragma once
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace hetero::transport {

struct Faults {
    // Probabilities, drawn for each frame that is sent.
    double drop = 0, duplicate = 0, reorder = 0;
    double flip = 0;                       // one bit of the payload
    double flip_header = 0, truncate = 0;  // of carriers that may do so; MPI keeps the bounds of messages
    double max_delay_s = 0;                // each frame is late by up to so much, so that later ones overtake it
    std::int64_t stall_after = -1;         // after so many frames only heartbeats still leave; -1: never
    std::int64_t die_after = -1;           // after so many frames nothing leaves or arrives, and on_death() is called
    std::uint32_t seed = 1;
    [[nodiscard]] bool any() const noexcept;
};

// "drop=0.01,dup=0.01,reorder=0.01,flip=0.001,delay=20,stall=100,die=200,seed=7", each at most once; delay in ms.
Result<Faults> parse_faults(std::string_view text);

}  // namespace hetero::transport
