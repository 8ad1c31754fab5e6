// The knapsack against every choice there is.
#include "calib/allocate.h"

#include <doctest/doctest.h>

#include <random>

using namespace hetero;
using calib::FrontPoint;
using calib::Option;

namespace {

using Parts = std::vector<std::vector<Option>>;

// Smallest loss for at most `budget`, by trying everything; negative: nothing fits.
double brute_force(const Parts& parts, std::uint64_t budget, std::size_t part = 0) {
    if (part == parts.size()) return 0;
    double best = -1;
    for (const Option& option : parts[part]) {
        if (option.cost > budget) continue;
        const double rest = brute_force(parts, budget - option.cost, part + 1);
        if (rest >= 0 && (best < 0 || option.loss + rest < best)) best = option.loss + rest;
    }
    return best;
}

Parts random_parts(unsigned seed, std::size_t n, std::uint64_t unit) {
    std::mt19937 random(seed);
    Parts parts(n);
    for (auto& options : parts) {
        for (std::size_t i = 1 + random() % 4; i > 0; --i) {
            options.push_back({(1 + random() % 12) * unit, static_cast<double>(random() % 1000) / 64});
        }
    }
    return parts;
}

void check_point(const Parts& parts, const FrontPoint& point) {
    REQUIRE(point.chosen.size() == parts.size());
    std::uint64_t cost = 0;
    double loss = 0;
    for (std::size_t part = 0; part < parts.size(); ++part) {
        cost += parts[part][point.chosen[part]].cost;
        loss += parts[part][point.chosen[part]].loss;
    }
    CHECK(cost == point.cost);
    CHECK(loss == doctest::Approx(point.loss).epsilon(1e-12));
}

}  // namespace

TEST_CASE("for every budget the front holds the best choice") {
    for (unsigned seed = 0; seed < 40; ++seed) {
        CAPTURE(seed);
        const Parts parts = random_parts(seed, 1 + seed % 6, 1 + seed % 7);
        const auto front = calib::pareto_front(parts);
        REQUIRE(front.has_value());
        for (std::size_t i = 0; i < front->size(); ++i) {
            check_point(parts, (*front)[i]);
            if (i == 0) continue;
            CHECK((*front)[i].cost > (*front)[i - 1].cost);
            CHECK((*front)[i].loss < (*front)[i - 1].loss);
        }
        for (std::uint64_t budget = 0; budget <= front->back().cost + 3; ++budget) {
            const FrontPoint* point = calib::within(*front, budget);
            const double best = brute_force(parts, budget);
            REQUIRE((point != nullptr) == (best >= 0));
            if (point != nullptr) CHECK(point->loss == doctest::Approx(best).epsilon(1e-12));
        }
    }
}

TEST_CASE("where units are coarse, no point costs more or loses less than it says") {
    const Parts parts = random_parts(5, 6, 997);
    const auto exact = calib::pareto_front(parts), coarse = calib::pareto_front(parts, 12);
    REQUIRE(exact.has_value());
    REQUIRE(coarse.has_value());
    CHECK(coarse->size() < exact->size());
    for (const FrontPoint& point : *coarse) {
        check_point(parts, point);
        CHECK(point.loss >= calib::within(*exact, point.cost)->loss - 1e-12);
    }
}

TEST_CASE("what cannot be weighed is refused") {
    CHECK_FALSE(calib::pareto_front({}).has_value());
    for (const double loss :
         {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        CHECK_FALSE(calib::pareto_front(Parts{{{1, 0.5}}, {{2, loss}}}).has_value());
    }
    CHECK_FALSE(calib::pareto_front(Parts{{{1, 0.5}}, {}}).has_value());
}
