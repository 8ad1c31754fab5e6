#include "transport/link_bench.h"

#include <doctest/doctest.h>

#include <cmath>
#include <utility>
#include <vector>

using namespace hetero;
using namespace hetero::transport;

TEST_CASE("quantiles lie between the values next to them") {
    const Sample sample{{5, 1, 4, 2, 3}};
    CHECK(sample.quantile(0) == 1);
    CHECK(sample.quantile(0.5) == 3);
    CHECK(sample.quantile(0.9) == doctest::Approx(4.6));
    CHECK(sample.quantile(1) == 5);
    CHECK(sample.spread() == doctest::Approx(4.0 / 3));
    CHECK(Sample{{7}}.quantile(0.99) == 7);
    CHECK(std::isnan(Sample{}.quantile(0.5)));
}

TEST_CASE("ours is compared with plain MPI of the same round") {
    LinkBenchRow row;
    row.raw.values = {100, 50, 200, 400, 94};
    row.checked.values = {90, 25, 180, 360, 94};  // 0.9, 0.5, 0.9, 0.9, 1
    row.unchecked.values = {98, 49, 198, 396, 94};
    const PairedRatio checked = row.checked_ratio(), unchecked = row.unchecked_ratio();
    CHECK(checked.median == doctest::Approx(0.9));
    CHECK(checked.low == doctest::Approx(0.5));  // five pairs: all of them
    CHECK(checked.high == doctest::Approx(1));
    CHECK_FALSE(checked.settled());
    CHECK(unchecked.median == doctest::Approx(0.99));
    CHECK(unchecked.settled());
    CHECK_FALSE(row.settled());
    CHECK_FALSE(LinkBenchRow{}.settled());
    CHECK(std::isnan(LinkBenchRow{}.checked_ratio().median));
    CHECK_FALSE(LinkBenchRow{}.checked_ratio().settled());
}

TEST_CASE("a row is judged where plain MPI is steady and the pairs agree") {
    LinkBenchRow row;
    row.raw.values = {100, 104, 96, 108, 94};  // 14 %
    row.unchecked = row.checked = row.raw;
    CHECK(row.settled());
    row.checked.values[1] /= 2;
    CHECK_FALSE(row.settled());
    row.raw.values[3] = 112;
    row.unchecked = row.checked = row.raw;
    CHECK_FALSE(row.settled());
}

TEST_CASE("a range of pairs has the median by the tables of the sign test") {
    for (const auto& [pairs, rank] : {std::pair(5, 1), {6, 1}, {8, 1}, {9, 2}, {15, 4}, {20, 6}, {50, 18}}) {
        Sample ours, others;
        for (int i = 1; i <= pairs; ++i) {
            ours.values.push_back(pairs + 1 - i);
            others.values.push_back(1);
        }
        CHECK(paired_ratio(ours, others).low == rank);
        CHECK(paired_ratio(ours, others).high == pairs + 1 - rank);
    }
}

TEST_CASE("the row nearest to a size stands for it") {
    LinkBench bench;
    CHECK(bench.nearest(1U << 20) == nullptr);
    for (const std::uint64_t bytes : {64U << 10, 256U << 10, 4U << 20}) bench.rows.push_back({bytes, 0, {}, {}, {}});
    CHECK(bench.nearest(64U << 10) == &bench.rows[0]);
    CHECK(bench.nearest(512U << 10) == &bench.rows[1]);
    CHECK(bench.nearest(2U << 20) == &bench.rows[2]);
    CHECK(bench.nearest(1U << 30) == &bench.rows[2]);
}

TEST_CASE("of a sweep, the best has the highest median, and the chosen the usual chunk and the window of the link") {
    LinkBench bench;
    bench.window_bytes = 4U << 20;
    CHECK(bench.best(&LinkBenchCell::checked) == nullptr);
    CHECK(bench.chosen() == nullptr);
    bench.sweep = {{usual_message_bytes, 1U << 20, {{1, 2, 9}}, {{5, 5, 5}}},
                   {usual_message_bytes, 4U << 20, {{3, 3, 3}}, {{4, 4, 9}}},
                   {4 * usual_message_bytes, 4U << 20, {{2, 2.5, 2.5}}, {{1, 1, 1}}}};
    CHECK(bench.best(&LinkBenchCell::checked) == &bench.sweep[1]);
    CHECK(bench.best(&LinkBenchCell::unchecked) == &bench.sweep[0]);
    CHECK(bench.chosen() == &bench.sweep[1]);
}
