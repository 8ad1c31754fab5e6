#include "transport/send_window.h"

namespace hetero::transport {

std::uint64_t window_for(const LinkRate& rate) noexcept {
    constexpr double wait_s = 30e-3;
    const double bytes = rate.bytes_per_s * (4 * rate.latency_s + wait_s);
    if (!(bytes > static_cast<double>(least_window_bytes))) return least_window_bytes;  // NaN too
    if (bytes >= static_cast<double>(most_window_bytes)) return most_window_bytes;
    return static_cast<std::uint64_t>(bytes);
}

}  // namespace hetero::transport
