#include "base/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace hetero {
namespace {

constexpr double no_value = std::numeric_limits<double>::quiet_NaN();

bool usable(std::span<const double> values) {
    return !values.empty() && std::none_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
}

}  // namespace

double percentile(std::span<const double> values, double percent) {
    if (!usable(values) || !(percent >= 0 && percent <= 100)) return no_value;
    // The product first: 7 % of 100 is exactly 7, where 0.07 * 100 is a little more and would give rank 8. What is left
    // of rounding (99.9 is no binary number) is far below the slack.
    const double exact = percent * static_cast<double>(values.size()) / 100;
    const auto rank = static_cast<std::size_t>(std::ceil(exact * (1 - 1e-12)));
    std::vector<double> sorted(values.begin(), values.end());
    const auto nth = sorted.begin() + static_cast<std::ptrdiff_t>(std::clamp<std::size_t>(rank, 1, sorted.size()) - 1);
    std::nth_element(sorted.begin(), nth, sorted.end());
    return *nth;
}

double mean(std::span<const double> values) {
    if (!usable(values)) return no_value;
    double sum = 0, lost = 0;  // Kahan
    for (const double value : values) {
        const double term = value - lost;
        const double next = sum + term;
        lost = (next - sum) - term;
        sum = next;
    }
    if (!std::isfinite(sum)) sum = std::accumulate(values.begin(), values.end(), 0.0);  // Kahan makes NaN of infinity
    return sum / static_cast<double>(values.size());
}

double minimum(std::span<const double> values) {
    return usable(values) ? *std::min_element(values.begin(), values.end()) : no_value;
}

double maximum(std::span<const double> values) {
    return usable(values) ? *std::max_element(values.begin(), values.end()) : no_value;
}

}  // namespace hetero
