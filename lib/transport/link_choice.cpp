#include "transport/link_choice.h"

#include <algorithm>
#include <bit>

namespace hetero::transport {
namespace {

constexpr double chunk_s = 1e-3, wait_s = 10e-3;
constexpr std::uint64_t least_chunk = 64U << 10, most_chunk = 1U << 20;
constexpr std::uint64_t least_window = 1U << 20, most_window = 256U << 20;

// NaN and less than nothing: `least`.
std::uint64_t within(double bytes, std::uint64_t least, std::uint64_t most) noexcept {
    if (!(bytes > static_cast<double>(least))) return least;
    return bytes < static_cast<double>(most) ? static_cast<std::uint64_t>(bytes) : most;
}

}  // namespace

LinkChoice choose_for(const LinkRate& rate) noexcept {
    LinkChoice choice;
    choice.chunk_bytes = std::bit_ceil(within(rate.bytes_per_s * chunk_s, least_chunk, most_chunk));
    choice.window_bytes = within(rate.bytes_per_s * (4 * rate.latency_s + wait_s),
                                 std::max(least_window, 4 * choice.chunk_bytes), most_window);
    return choice;
}

}  // namespace hetero::transport
