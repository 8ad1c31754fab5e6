#include "base/statistics.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

using namespace hetero;

namespace {

// The definition, without ranks: the smallest value with at least percent % of the values at or below it.
double percentile_by_counting(std::vector<double> values, int percent) {
    std::sort(values.begin(), values.end());
    for (const double candidate : values) {
        const auto at_or_below = std::count_if(values.begin(), values.end(), [&](double v) { return v <= candidate; });
        if (at_or_below * 100 >= static_cast<std::ptrdiff_t>(values.size()) * percent) return candidate;
    }
    return values.back();
}

}  // namespace

TEST_CASE("percentiles are of nearest rank") {
    const std::vector<double> values{50, 15, 40, 20, 35};
    CHECK(percentile(values, 0) == 15);
    CHECK(percentile(values, 5) == 15);
    CHECK(percentile(values, 20) == 15);
    CHECK(percentile(values, 30) == 20);
    CHECK(percentile(values, 40) == 20);
    CHECK(percentile(values, 50) == 35);
    CHECK(percentile(values, 100) == 50);
}

TEST_CASE("percentiles follow the definition for every size and whole percent") {
    std::mt19937 random(3);
    for (std::size_t n : {1U, 2U, 3U, 7U, 99U, 100U, 101U, 200U, 256U}) {
        std::vector<double> values(n);
        for (double& value : values) value = static_cast<double>(random() % 50);  // with ties
        for (int percent = 0; percent <= 100; ++percent) {
            REQUIRE_MESSAGE(percentile(values, percent) == percentile_by_counting(values, percent), n, " values, ",
                            percent, " %");
        }
    }
    std::vector<double> thousand(1000);
    std::iota(thousand.begin(), thousand.end(), 1.0);
    CHECK(percentile(thousand, 99.9) == 999);
    CHECK(percentile(thousand, 99.91) == 1000);
    CHECK(percentile(thousand, 0.1) == 1);
}

TEST_CASE("mean, minimum, maximum") {
    const std::vector<double> values{3, -1, 4, 1.5};
    CHECK(mean(values) == 1.875);
    CHECK(minimum(values) == -1);
    CHECK(maximum(values) == 4);
    // Adding up 1e6 tenths naively is off by about 1e-6.
    CHECK(std::abs(mean(std::vector<double>(1'000'000, 0.1)) - 0.1) < 1e-15);
    std::vector<double> wide(100'001, 1.0);
    wide.front() = 1e16;
    CHECK(mean(wide) == doctest::Approx((1e16 + 1e5) / 100'001).epsilon(1e-15));
}

TEST_CASE("no values, NaN and percents out of range give NaN, infinity is kept") {
    const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
    for (const std::vector<double>& values : {std::vector<double>{}, {nan}, {1, nan, 2}}) {
        CHECK(std::isnan(percentile(values, 50)));
        CHECK(std::isnan(mean(values)));
        CHECK(std::isnan(minimum(values)));
        CHECK(std::isnan(maximum(values)));
    }
    const std::vector<double> values{1, infinity, 2};
    CHECK(percentile(values, 50) == 2);
    CHECK(maximum(values) == infinity);
    CHECK(mean(values) == infinity);
    CHECK(std::isnan(percentile(values, -1)));
    CHECK(std::isnan(percentile(values, 100.5)));
    CHECK(std::isnan(percentile(values, nan)));
}
