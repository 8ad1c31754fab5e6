// What is scheduled, and the states that a request passes through.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace hetero::sched {

using RequestId = std::uint32_t;

struct Request {
    double arrival_s = 0;             // never decreasing in a list of requests
    std::uint32_t prompt_tokens = 1;  // > 0
    std::uint32_t cached_tokens = 0;  // of the prompt, with KV at hand: < prompt_tokens
    std::uint32_t output_tokens = 1;  // > 0
};

enum class Phase : std::uint8_t {
    queued,        // for prefill
    prefilling,    // in a batch, or between its chunks
    handing_over,  // prefilled; waits until a decoder has reserved its memory
    in_flight,     // KV on the link
    decoding,
    finished,
    refused  // fits no worker, ever
};
[[nodiscard]] std::string_view phase_name(Phase phase) noexcept;
// Whether a request may go from one state to the other. finished and refused are final.
[[nodiscard]] bool may_follow(Phase from, Phase to) noexcept;

// When a request reached each state. The stages add up: what is between two entries is one stage, none overlaps.
struct Timeline {
    double arrival_s = 0, prefill_start_s = 0, prefill_end_s = 0, reserved_s = 0, decode_start_s = 0, end_s = 0;
    double first_token_s = 0;
    Phase phase = Phase::queued;
};

}  // namespace hetero::sched
