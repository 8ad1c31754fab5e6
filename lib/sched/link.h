// What sending a request's KV from prefill to decode takes.
#pragma once
#include <cstdint>

#include "sched/kv_size.h"

namespace hetero::sched {

struct Transfer {
    double whole_s = 0;     // from its start to its end
    double visible_s = 0;   // of that after the end of prefill
    double occupied_s = 0;  // of the link
};

// From each prefill worker to each of decode; transfers of one worker, either way, go one after the other.
struct LinkTiming {
    double latency_s = 0;
    double bytes_per_s = 1;          // > 0
    double convert_s_per_token = 0;  // quantizing at the sender and decoding at the receiver, in series
    KvSize kv;                       // as it is on the wire
    // Layers that are sent while later ones are computed: 1 is none before the last.
    std::uint32_t layers = 1;
    bool overlapped = false;
    double staging_fraction = 0;  // of a state's wire bytes, held by the receiver beside the state itself
    double resident_prefix = 0;   // of a prompt's cached tokens, those whose KV the decoder has: 0 to 1

    // Of a state of which `tokens` are sent and whose prefill took `prefill_s`: serial, or with layers overlapped
    // T_vis = T / L + (1 - 1/L) max(0, T - T_P).
    [[nodiscard]] Transfer transfer(double bytes, double tokens, double prefill_s) const noexcept;
};

}  // namespace hetero::sched
