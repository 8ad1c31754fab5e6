// Summaries of measured values. NaN among the values makes every result NaN: it never passes for a number.
#pragma once
#include <span>

namespace hetero {

// Nearest rank: the smallest value with at least `percent` % of the values at or below it, always one of the values.
// percent in [0, 100]; 0 is the minimum. NaN where there are no values.
[[nodiscard]] double percentile(std::span<const double> values, double percent);

[[nodiscard]] double mean(std::span<const double> values);     // NaN where there are no values
[[nodiscard]] double minimum(std::span<const double> values);  // likewise
[[nodiscard]] double maximum(std::span<const double> values);  // likewise

}  // namespace hetero
