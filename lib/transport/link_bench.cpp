#include "transport/link_bench.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hetero::transport {
namespace {

double median_ratio(const Sample& ours, const Sample& raw) {
    Sample ratios;
    for (std::size_t i = 0; i < std::min(ours.values.size(), raw.values.size()); ++i)
        ratios.values.push_back(ours.values[i] / raw.values[i]);
    return ratios.quantile(0.5);
}

}  // namespace

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

double LinkBenchRow::checked_ratio() const { return median_ratio(checked, raw); }
double LinkBenchRow::unchecked_ratio() const { return median_ratio(unchecked, raw); }
bool LinkBenchRow::settled() const { return raw.spread() <= max_settled_spread; }

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
