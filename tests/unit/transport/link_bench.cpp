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

TEST_CASE("ours is compared with plain MPI of the same round, and only where that is steady") {
    LinkBenchRow row;
    row.raw.values = {100, 104, 96, 108, 94};
    row.checked.values = {90, 52, 86.4, 97.2, 94};  // 0.9, 0.5, 0.9, 0.9, 1
    row.unchecked.values = {100, 104, 96, 54, 94};
    CHECK(row.checked_ratio() == doctest::Approx(0.9));
    CHECK(row.unchecked_ratio() == doctest::Approx(1));
    CHECK(row.settled());  // 14 %
    row.raw.values[3] = 112;
    CHECK_FALSE(row.settled());
    CHECK_FALSE(LinkBenchRow{}.settled());
}

TEST_CASE("the best size is that with the highest median, the chosen one stands for its neighbours") {
    LinkBench bench;
    CHECK(bench.best() == nullptr);
    CHECK(bench.nearest(1U << 20) == nullptr);
    for (const auto& [bytes, rates] :
         {std::pair(64U << 10, std::vector<double>{1, 2, 9}), std::pair(256U << 10, std::vector<double>{3, 3, 3}),
          std::pair(4U << 20, std::vector<double>{2, 2.5, 2.5})}) {
        LinkBenchRow row;
        row.message_bytes = bytes;
        row.checked.values = rates;
        bench.rows.push_back(row);
    }
    CHECK(bench.best() == &bench.rows[1]);
    CHECK(bench.nearest(64U << 10) == &bench.rows[0]);
    CHECK(bench.nearest(512U << 10) == &bench.rows[1]);
    CHECK(bench.nearest(2U << 20) == &bench.rows[2]);
    CHECK(bench.nearest(1U << 30) == &bench.rows[2]);
}
