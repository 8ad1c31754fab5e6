#include "transport/send_window.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace hetero::transport;

TEST_CASE("the window follows from rate and latency") {
    CHECK(window_for({0.5e-6, 4e9}) == doctest::Approx(120.008e6).epsilon(1e-6));
    CHECK(window_for({100e-6, 1.25e9}) == doctest::Approx(38e6).epsilon(1e-6));
    CHECK(window_for({50e-3, 1e9}) == doctest::Approx(230e6).epsilon(1e-6));  // far: two round trips of 100 ms
    CHECK(window_for({100e-6, 25e6}) == least_window_bytes);
}

TEST_CASE("no measurement leads out of the bounds") {
    const double values[] = {0, 1, 2.5e7, 1e9, 1e15, std::numeric_limits<double>::infinity(), std::nan(""), -1};
    for (const double bytes_per_s : values) {
        for (const double latency_s : values) {
            CHECK(window_for({latency_s, bytes_per_s}) >= least_window_bytes);
            CHECK(window_for({latency_s, bytes_per_s}) <= most_window_bytes);
        }
    }
    CHECK(window_for({0, 1e15}) == most_window_bytes);
}
