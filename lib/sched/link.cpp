#include "sched/link.h"

#include <algorithm>

namespace hetero::sched {

Transfer LinkTiming::transfer(double bytes, double tokens, double prefill_s) const noexcept {
    const double wire_s = bytes / bytes_per_s, convert_s = tokens * convert_s_per_token;
    Transfer out;
    out.occupied_s = wire_s;
    if (!overlapped || layers < 2) {
        out.whole_s = out.visible_s = latency_s + wire_s + convert_s;
        return out;
    }
    // Layers pass through conversion and link one after the other; the last one cannot start before it is computed.
    const double n = layers;
    out.whole_s = latency_s + std::max(wire_s, convert_s) + std::min(wire_s, convert_s) / n;
    out.visible_s = out.whole_s / n + (1 - 1 / n) * std::max(0.0, out.whole_s - prefill_s);
    return out;
}

}  // namespace hetero::sched
