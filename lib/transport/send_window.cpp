#include "transport/send_window.h"

namespace hetero::transport {
namespace {

std::uint64_t carried_in(double seconds, const LinkRate& rate, std::uint64_t least) noexcept {
    const double bytes = rate.bytes_per_s * seconds;
    if (!(bytes > static_cast<double>(least))) return least;  // NaN too
    if (bytes >= static_cast<double>(most_window_bytes)) return most_window_bytes;
    return static_cast<std::uint64_t>(bytes);
}

}  // namespace

SendWindow window_for(const LinkRate& rate) noexcept {
    constexpr double rest_s = 1e-3;  // the longest of the thread that moves frames, see mpi_world.cpp
    const double two_round_trips_s = 4 * rate.latency_s;
    return {.bytes = carried_in(two_round_trips_s + rest_s, rate, least_window_bytes),
            .in_flight_bytes = carried_in(two_round_trips_s, rate, least_in_flight_bytes)};
}

}  // namespace hetero::transport
