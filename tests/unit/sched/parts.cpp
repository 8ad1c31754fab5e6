#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "base/statistics.h"
#include "sched/arrivals.h"
#include "sched/histogram.h"
#include "sched/ledger.h"
#include "sched/policy.h"
#include "sched/request.h"

using namespace hetero;
using namespace hetero::sched;

TEST_CASE("percentiles of the histogram are those of the values to 0.5 %") {
    DurationHistogram histogram;
    std::vector<double> values;
    for (int i = 1; i <= 5000; ++i) {
        values.push_back(1e-6 * std::pow(1.003, i));
        histogram.add(values.back());
    }
    for (const double percent : {1.0, 50.0, 90.0, 99.0, 99.9})
        CHECK(histogram.percentile_s(percent) == doctest::Approx(percentile(values, percent)).epsilon(0.005));
    CHECK(histogram.percentile_s(100) == values.back());
    CHECK(histogram.mean_s() == doctest::Approx(mean(values)));
    DurationHistogram weighted;
    weighted.add(1, 98);
    weighted.add(2, 2);
    CHECK(weighted.percentile_s(98) == doctest::Approx(1).epsilon(0.005));
    CHECK(weighted.percentile_s(98.5) == doctest::Approx(2).epsilon(0.005));
    CHECK(std::isnan(DurationHistogram().percentile_s(50)));
    DurationHistogram extremes;
    extremes.add(0);
    extremes.add(1e30);
    CHECK(extremes.percentile_s(100) == 1e30);
    CHECK(extremes.percentile_s(50) <= 1.01e-9);
}

TEST_CASE("a ledger never gives more than there is, nor twice") {
    Ledger ledger(100);
    CHECK(ledger.reserve(1, 60));
    CHECK_FALSE(ledger.reserve(2, 41));
    CHECK_FALSE(ledger.reserve(1, 1));
    CHECK(ledger.reserve(2, 40));
    CHECK_FALSE(ledger.reserve(3, ~std::uint64_t{0}));
    CHECK(ledger.used_bytes() == 100);
    CHECK(ledger.shrink(2, 10));
    CHECK_FALSE(ledger.shrink(2, 11));
    CHECK(ledger.used_bytes() == 70);
    CHECK(ledger.release(1));
    CHECK_FALSE(ledger.release(1));
    CHECK(ledger.release(2));
    CHECK(ledger.used_bytes() == 0);
    CHECK(ledger.peak_bytes() == 100);
}

TEST_CASE("a request passes through its phases in one direction") {
    using enum Phase;
    const std::vector<Phase> split{queued, prefilling, handing_over, in_flight, decoding, finished};
    const std::vector<Phase> colocated{queued, prefilling, decoding, finished};
    for (const auto& path : {split, colocated}) {
        for (std::size_t i = 0; i + 1 < path.size(); ++i) {
            CHECK(may_follow(path[i], path[i + 1]));
            CHECK_FALSE(may_follow(path[i + 1], path[i]));
        }
    }
    CHECK_FALSE(may_follow(queued, decoding));
    for (const Phase phase : split) {
        CHECK_FALSE(may_follow(finished, phase));
        CHECK_FALSE(may_follow(refused, phase));
    }
    CHECK(phase_name(handing_over) == "handing_over");
}

TEST_CASE("Poisson arrivals have the rate, and gaps as spread as their mean") {
    const auto requests = poisson_requests({100'000, 4, 10, 2, 3, 5});
    std::vector<double> gaps;
    for (std::size_t i = 1; i < requests.size(); ++i) gaps.push_back(requests[i].arrival_s - requests[i - 1].arrival_s);
    const double m = mean(gaps);
    CHECK(m == doctest::Approx(0.25).epsilon(0.02));
    double variance = 0;
    for (const double gap : gaps) variance += (gap - m) * (gap - m) / static_cast<double>(gaps.size());
    CHECK(std::sqrt(variance) == doctest::Approx(m).epsilon(0.03));
    CHECK(requests[0].arrival_s == 0);
    CHECK(requests[9].cached_tokens == 2);
    const auto again = resampled({{0, 7, 0, 1}, {9, 8, 0, 2}}, 5, 4, 5);
    REQUIRE(again.size() == 5);
    CHECK(again[3].prompt_tokens == 8);
    CHECK(again[4].prompt_tokens == 7);
    CHECK(again[4].arrival_s == requests[4].arrival_s);
    CHECK(resampled({}, 5, 4, 5).empty());
    // Stretched to a rate, bursts and all.
    const std::vector<Request> trace{{5, 7, 0, 1}, {5, 8, 0, 2}, {6, 9, 0, 3}, {13, 9, 0, 3}};
    const auto faster = as_fast(trace, 2);
    REQUIRE(faster.size() == 4);
    CHECK(faster[1].arrival_s == 0);
    CHECK(faster[2].arrival_s == doctest::Approx(0.25));
    CHECK(faster[3].arrival_s == doctest::Approx(2));
    CHECK(faster[2].prompt_tokens == 9);
    CHECK(as_fast({{3, 7, 0, 1}, {3, 8, 0, 2}}, 2)[1].arrival_s == 3);
    const auto part = busiest(trace, 3);
    REQUIRE(part.size() == 3);
    CHECK(part[0].prompt_tokens == 7);
    CHECK(busiest({{0, 1, 0, 1}, {9, 2, 0, 1}, {10, 3, 0, 1}}, 2)[0].prompt_tokens == 2);
    CHECK(busiest(trace, 9).size() == 4);
}

TEST_CASE("policies") {
    Policy policy;
    CHECK_FALSE(choose(policy, {}).has_value());
    CHECK(choose(policy, {false, 3, false, false})->decode);
    CHECK_FALSE(choose(policy, {true, 3, false, false})->decode);
    policy.sharing = Sharing::chunked;
    policy.chunk_tokens = 512;
    const Choice chunk = *choose(policy, {true, 100, false, false});
    CHECK((chunk.decode && chunk.prompts && !chunk.whole_prompts));
    CHECK(chunk.prompt_tokens == 412);
    CHECK(choose(policy, {true, 5000, false, false})->prompt_tokens == 64);  // prompts go on, whatever decodes
    policy.sharing = Sharing::time_sliced;
    CHECK(choose(policy, {true, 1, false, true})->prompts);
    CHECK_FALSE(choose(policy, {true, 1, true, true})->prompts);
    CHECK(choose(policy, {true, 1, true, false})->prompts);
    CHECK_FALSE(choose(policy, {true, 1, false, false})->prompts);
    CHECK(choose(policy, {true, 0, false, false})->prompts);
}
