// Summaries of measured values. NaN among the values makes every result NaN: it never passes for a number.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

namespace hetero {

// Nearest rank: the smallest value with at least `percent` % of the values at or below it, always one of the values.
// percent in [0, 100]; 0 is the minimum. NaN where there are no values.
[[nodiscard]] double percentile(std::span<const double> values, double percent);

[[nodiscard]] double mean(std::span<const double> values);     // NaN where there are no values
[[nodiscard]] double minimum(std::span<const double> values);  // likewise
[[nodiscard]] double maximum(std::span<const double> values);  // likewise

// Holds the true value with 95 % confidence; NaN where that cannot be said.
struct Interval {
    double low = std::numeric_limits<double>::quiet_NaN(), high = std::numeric_limits<double>::quiet_NaN();
};

// A fraction of n trials with Wilson's score interval (Wilson 1927, J. Am. Stat. Assoc. 22, 209).
struct Proportion {
    double value = std::numeric_limits<double>::quiet_NaN();
    Interval interval;
};
[[nodiscard]] Proportion proportion(std::uint64_t successes, std::uint64_t n);  // n = 0: NaN

// The percentile interval of a statistic of a series whose neighbours depend on each other: whole blocks are drawn with
// replacement, as many as there are (Kuensch 1989, Ann. Stat. 17, 1217). `block_lengths`, none 0, divide the series in
// order. `statistic` gets the places of a drawn series. Depends on the arguments alone. Fewer than two blocks: NaN.
[[nodiscard]] Interval block_bootstrap(std::span<const std::size_t> block_lengths, std::uint32_t resamples,
                                       std::uint64_t seed,
                                       const std::function<double(std::span<const std::size_t> places)>& statistic);

}  // namespace hetero
