#include "sched/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hetero::sched {
namespace {

constexpr double shortest_s = 1e-9, longest_s = 1e6, width = 1.005;
const double log_width = std::log(width);
const std::size_t n_buckets = static_cast<std::size_t>(std::log(longest_s / shortest_s) / log_width) + 2;

}  // namespace

DurationHistogram::DurationHistogram() : buckets_(n_buckets) {}

void DurationHistogram::add(double seconds, std::uint64_t count) noexcept {
    if (count == 0) return;
    if (!(seconds > last_from_s_ && seconds < last_to_s_)) {
        const double place = std::log(std::clamp(seconds, shortest_s, longest_s) / shortest_s) / log_width;
        last_bucket_ = std::min(static_cast<std::size_t>(place), n_buckets - 1);
        const double from_s = shortest_s * std::exp(static_cast<double>(last_bucket_) * log_width);
        last_from_s_ = from_s * (1 + 1e-9);  // less what the logarithm rounds
        last_to_s_ = from_s * width * (1 - 1e-9);
    }
    buckets_[last_bucket_] += count;
    count_ += count;
    sum_s_ += seconds * static_cast<double>(count);
    max_s_ = std::max(max_s_, seconds);
}

double DurationHistogram::percentile_s(double percent) const noexcept {
    if (count_ == 0) return std::numeric_limits<double>::quiet_NaN();
    const auto rank =
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(percent / 100 * static_cast<double>(count_))));
    if (rank >= count_) return max_s_;
    std::uint64_t seen = 0;
    for (std::size_t bucket = 0; bucket < n_buckets; ++bucket) {
        seen += buckets_[bucket];
        if (seen < rank) continue;
        const double middle = shortest_s * std::exp((static_cast<double>(bucket) + 0.5) * log_width);
        return std::min(middle, max_s_);
    }
    return max_s_;
}

double DurationHistogram::mean_s() const noexcept {
    if (count_ == 0) return std::numeric_limits<double>::quiet_NaN();
    return sum_s_ / static_cast<double>(count_);
}

}  // namespace hetero::sched
