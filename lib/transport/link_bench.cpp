#include "transport/link_bench.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hetero::transport {
namespace {

// Of n sorted values the index of the lowest that bounds their median from below, by a sign test: below it lie so many
// of n throws of a coin or fewer in at most 1 of 40 cases.
std::size_t lower_bound_of_median(std::size_t n) {
    double term = std::pow(0.5, static_cast<double>(n)), below = term;
    std::size_t index = 0;
    while (index < n / 2) {
        term *= static_cast<double>(n - index) / static_cast<double>(index + 1);
        if (below + term > 1.0 / 40) break;
        below += term;
        ++index;
    }
    return index;
}

}  // namespace

PairedRatio paired_ratio(const Sample& ours, const Sample& others) {
    Sample ratios;
    for (std::size_t i = 0; i < std::min(ours.values.size(), others.values.size()); ++i)
        ratios.values.push_back(ours.values[i] / others.values[i]);
    if (ratios.values.empty()) return {};
    std::sort(ratios.values.begin(), ratios.values.end());
    const std::size_t low = lower_bound_of_median(ratios.values.size());
    return {ratios.quantile(0.5), ratios.values[low], ratios.values[ratios.values.size() - 1 - low]};
}

double Sample::quantile(double q) const {
    if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const double at = q * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(std::floor(at));
    const std::size_t above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (at - std::floor(at)) * (sorted[above] - sorted[below]);
}

double Sample::spread() const { return (quantile(1) - quantile(0)) / quantile(0.5); }

const LinkBenchCell* LinkBench::chosen() const noexcept {
    const auto found = std::find_if(sweep.begin(), sweep.end(), [&](const LinkBenchCell& cell) {
        return cell.message_bytes == usual_message_bytes && cell.window_bytes == window_bytes;
    });
    return found == sweep.end() ? nullptr : &*found;
}

const LinkBenchCell* LinkBench::best(Sample LinkBenchCell::*rates) const noexcept {
    const auto found =
        std::max_element(sweep.begin(), sweep.end(), [&](const LinkBenchCell& a, const LinkBenchCell& b) {
            return (a.*rates).quantile(0.5) < (b.*rates).quantile(0.5);
        });
    return found == sweep.end() ? nullptr : &*found;
}

const LinkBenchRow* LinkBench::nearest(std::uint64_t message_bytes) const noexcept {
    const auto distance = [&](const LinkBenchRow& row) {
        return std::abs(std::log2(static_cast<double>(row.message_bytes) / static_cast<double>(message_bytes)));
    };
    const auto found = std::min_element(rows.begin(), rows.end(), [&](const LinkBenchRow& a, const LinkBenchRow& b) {
        return distance(a) < distance(b);
    });
    return found == rows.end() ? nullptr : &*found;
}

}  // namespace hetero::transport
