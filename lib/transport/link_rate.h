// What a link can carry.
#pragma once

namespace hetero::transport {

struct LinkRate {
    double latency_s = 0;    // one way
    double bytes_per_s = 0;  // of payload, checksums included
};

}  // namespace hetero::transport
