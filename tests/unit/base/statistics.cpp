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

TEST_CASE("Wilson's interval of a proportion") {
    const Proportion half = proportion(5, 10);  // published example values: 0.2366, 0.7634
    CHECK(half.value == 0.5);
    CHECK(half.interval.low == doctest::Approx(0.23659).epsilon(1e-4));
    CHECK(half.interval.high == doctest::Approx(0.76341).epsilon(1e-4));
    const Proportion all = proportion(768, 768);
    CHECK(all.interval.high == 1);
    CHECK(all.interval.low == doctest::Approx(0.99502).epsilon(1e-4));
    CHECK(proportion(0, 20).interval.low == 0);
    CHECK(std::isnan(proportion(0, 0).value));
}

TEST_CASE("bootstrap over blocks: covers, is deterministic, and takes blocks whole") {
    // The mean of independent values, against the normal interval.
    std::mt19937 random(5);
    std::normal_distribution<double> normal(3, 2);
    std::vector<double> values(400);
    for (double& value : values) value = normal(random);
    const std::vector<std::size_t> single(values.size(), 1);
    const auto mean_at = [&](std::span<const std::size_t> places) {
        double sum = 0;
        for (const std::size_t place : places) sum += values[place];
        return sum / static_cast<double>(places.size());
    };
    const double centre = mean(values);
    double squares = 0;
    for (const double value : values) squares += (value - centre) * (value - centre);
    const double half = 1.96 * std::sqrt(squares / 399 / 400);
    const Interval interval = block_bootstrap(single, 2000, 7, mean_at);
    CHECK(interval.low == doctest::Approx(centre - half).epsilon(0.01));
    CHECK(interval.high == doctest::Approx(centre + half).epsilon(0.01));
    CHECK(block_bootstrap(single, 2000, 7, mean_at).low == interval.low);
    CHECK(block_bootstrap(single, 2000, 8, mean_at).low != interval.low);
    // Neighbours that are equal carry one piece of information: blocks show it, single values do not.
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = values[i / 20 * 20];
    const std::vector<std::size_t> blocks(values.size() / 20, 20);
    const Interval wide = block_bootstrap(blocks, 2000, 7, mean_at), narrow = block_bootstrap(single, 2000, 7, mean_at);
    CHECK(wide.high - wide.low > 3 * (narrow.high - narrow.low));
    // Places of a block stay together and in order.
    const std::vector<std::size_t> uneven{3, 5, 2};
    const Interval none = block_bootstrap(uneven, 50, 1, [](std::span<const std::size_t> places) {
        for (std::size_t i = 0; i < places.size();) {
            const std::size_t length = places[i] == 0 ? 3 : places[i] == 3 ? 5 : 2;
            REQUIRE((places[i] == 0 || places[i] == 3 || places[i] == 8));
            for (std::size_t j = 0; j < length; ++j) REQUIRE(places[i + j] == places[i] + j);
            i += length;
        }
        return 0.0;
    });
    CHECK(none.high == 0);
    CHECK(std::isnan(block_bootstrap(std::vector<std::size_t>{400}, 100, 1, mean_at).low));
}
