// Latency and bandwidth of an MPI link: of plain MPI, and of KV states over hkv-mpi in the same run, by turns. Two
// ranks call it for each other; the lower one sends, times, and gets the figures.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "base/result.h"
#include "transport/endpoint.h"

namespace hetero::transport {

inline constexpr std::uint64_t usual_message_bytes = 1U << 20;

struct LinkBenchOptions {
    // Multiples of 2 KiB, below 1 GiB.
    std::vector<std::uint64_t> message_bytes = {4U << 10, 16U << 10, 64U << 10, 256U << 10,
                                                1U << 20, 4U << 20,  16U << 20, 64U << 20};
    std::uint64_t max_bytes = 512ULL << 20;  // of one transfer
    double round_s = 0.12;                   // one transfer takes about so long, if max_bytes allows
    double usual_round_s = 1;                // likewise of usual_message_bytes, whose figure is the one to quote
    int rounds = 15;
    int round_trips = 5000;  // fewer on a slow link
};

// Figures of the rounds, in the order in which they were taken.
struct Sample {
    std::vector<double> values;
    [[nodiscard]] double quantile(double q) const;  // 0.5: the median; NaN without values
    [[nodiscard]] double spread() const;            // largest less smallest, by the median
};

// Of values by others that were taken next to them, pair by pair: what drifts from pair to pair has no part in it.
struct PairedRatio {
    double median = std::numeric_limits<double>::quiet_NaN();
    // Values of pairs between which the median of all possible pairs lies at least 19 times in 20 (order statistics);
    // of fewer than six pairs, the smallest and the largest.
    double low = median, high = median;
    // Pairs agree enough to judge by the median.
    [[nodiscard]] bool settled() const noexcept { return high - low <= max_settled_spread * median; }
    static constexpr double max_settled_spread = 0.15;
};
[[nodiscard]] PairedRatio paired_ratio(const Sample& ours, const Sample& others);

// Transfers in messages (plain MPI) or chunks (KV states) of one size, in GB/s. All with the same memory and, for plain
// MPI, eight messages in flight.
struct LinkBenchRow {
    std::uint64_t message_bytes = 0, bytes = 0;  // of one message, of one transfer
    Sample raw, checked, unchecked;              // plain; with checksums, root and commit; without checksums
    // Of ours by the plain one of the same round.
    [[nodiscard]] PairedRatio checked_ratio() const { return paired_ratio(checked, raw); }
    [[nodiscard]] PairedRatio unchecked_ratio() const { return paired_ratio(unchecked, raw); }
    // Plain MPI is steady, and pairs agree: enough to compare.
    [[nodiscard]] bool settled() const {
        return raw.spread() <= PairedRatio::max_settled_spread && checked_ratio().settled() &&
               unchecked_ratio().settled();
    }
};

// States in chunks of one size, sent with one window.
struct LinkBenchCell {
    std::uint64_t message_bytes = 0, window_bytes = 0;
    Sample checked, unchecked;
};

struct LinkBench {
    Sample raw_us, frames_us;        // one way, of 64 bytes: plain MPI, and PROBE and its answer
    std::uint64_t window_bytes = 0;  // of `rows`: window_for() the measured link
    std::vector<LinkBenchRow> rows;
    // The sweep: chunk sizes times windows, by turns, that of usual_message_bytes and window_bytes among them; none
    // where usual_message_bytes was not measured.
    std::vector<LinkBenchCell> sweep;
    // Of a sweep: chosen() by best(), in pairs that were taken after it, as the best of many is so by chance in part.
    PairedRatio checked_of_best, unchecked_of_best;
    // Of the sweep, null without: what a transfer chooses, and the best by the median.
    [[nodiscard]] const LinkBenchCell* chosen() const noexcept;
    [[nodiscard]] const LinkBenchCell* best(Sample LinkBenchCell::*rates) const noexcept;
    // Of `rows`, null without: that of a size, or of the next to it.
    [[nodiscard]] const LinkBenchRow* nearest(std::uint64_t message_bytes) const noexcept;
};

// Instead of prepare(); afterwards leave(). Empty on the higher rank. Usage: not an mpi: endpoint, or not under mpirun.
Result<LinkBench> bench_link(const Endpoint& peer, const LinkBenchOptions& bench, const TransportOptions& options);

}  // namespace hetero::transport
