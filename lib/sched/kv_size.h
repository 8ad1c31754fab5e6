// How much memory, or bytes on a link, KV of so many tokens takes.
#pragma once
#include <algorithm>
#include <cstdint>

namespace hetero::sched {

// Of all layers. Layers with a window keep its last tokens only.
struct KvSize {
    double bytes_per_token = 0;   // of all layers together
    double sliding_fraction = 0;  // of these bytes, in layers with a window
    std::uint32_t window = 0;

    // Tokens' worth of bytes that `tokens` take.
    [[nodiscard]] double context(double tokens) const noexcept {
        if (window == 0) return tokens;
        return (1 - sliding_fraction) * tokens + sliding_fraction * std::min(tokens, static_cast<double>(window));
    }
    [[nodiscard]] double bytes(double tokens) const noexcept { return bytes_per_token * context(tokens); }
};

}  // namespace hetero::sched
