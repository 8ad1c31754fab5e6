// Percentiles of very many durations in little memory: buckets of a width of 0.5 % of the value, from 1 ns to 1e6 s.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hetero::sched {

class DurationHistogram {
public:
    DurationHistogram();
    void add(double seconds, std::uint64_t count = 1) noexcept;
    [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
    // NaN where nothing was added. Nearest rank, right to a bucket's width; 100 is the maximum, exactly.
    [[nodiscard]] double percentile_s(double percent) const noexcept;
    [[nodiscard]] double mean_s() const noexcept;

private:
    std::vector<std::uint64_t> buckets_;
    std::uint64_t count_ = 0;
    double sum_s_ = 0, max_s_ = 0;
    // The bucket of the last value and what surely lies in it: steps in a row last about the same.
    std::size_t last_bucket_ = 0;
    double last_from_s_ = 0, last_to_s_ = 0;
};

}  // namespace hetero::sched
