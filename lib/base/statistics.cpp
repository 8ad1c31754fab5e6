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

constexpr double z95 = 1.959963984540054;  // of the normal distribution, both sides together 5 %

// SplitMix64 (Steele, Lea, Flood 2014, doi:10.1145/2714064.2660195).
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::size_t below(std::size_t n) {  // n < 2^32
        state_ += 0x9E3779B97F4A7C15U;
        std::uint64_t x = state_;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
        return static_cast<std::size_t>(((x ^ (x >> 31)) >> 32) * n >> 32);
    }

private:
    std::uint64_t state_;
};

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

Proportion proportion(std::uint64_t successes, std::uint64_t n) {
    if (n == 0) return {};
    const double count = static_cast<double>(n), p = static_cast<double>(successes) / count, zz = z95 * z95;
    const double centre = (p + zz / (2 * count)) / (1 + zz / count);
    const double half = z95 / (1 + zz / count) * std::sqrt(p * (1 - p) / count + zz / (4 * count * count));
    return {p, {successes == 0 ? 0 : centre - half, successes == n ? 1 : centre + half}};
}

Interval block_bootstrap(std::span<const std::size_t> block_lengths, std::uint32_t resamples, std::uint64_t seed,
                         const std::function<double(std::span<const std::size_t> places)>& statistic) {
    if (block_lengths.size() < 2 || resamples == 0) return {};
    std::vector<std::size_t> begins(block_lengths.size());
    std::exclusive_scan(block_lengths.begin(), block_lengths.end(), begins.begin(), std::size_t{0});
    Random random(seed);
    std::vector<double> drawn(resamples);
    std::vector<std::size_t> places;
    for (double& value : drawn) {
        places.clear();
        for (std::size_t i = 0; i < begins.size(); ++i) {
            const std::size_t block = random.below(begins.size());
            for (std::size_t at = 0; at < block_lengths[block]; ++at) places.push_back(begins[block] + at);
        }
        value = statistic(places);
    }
    return {percentile(drawn, 2.5), percentile(drawn, 97.5)};
}

}  // namespace hetero
