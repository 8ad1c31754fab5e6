#include "transport/send_window.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace hetero::transport;

TEST_CASE("the window follows from rate and latency") {
    CHECK(window_for({0.5e-6, 4e9}).bytes == doctest::Approx(120.008e6).epsilon(1e-6));
    CHECK(window_for({100e-6, 1.25e9}).bytes == doctest::Approx(38e6).epsilon(1e-6));
    CHECK(window_for({50e-3, 1e9}).bytes == doctest::Approx(230e6).epsilon(1e-6));  // far: two round trips of 100 ms
    CHECK(window_for({100e-6, 25e6}).bytes == least_window_bytes);
}

TEST_CASE("the carrier is given what two round trips carry, and little of it where they are short") {
    CHECK(window_for({0.5e-6, 8e9}).in_flight_bytes == least_window_bytes);
    CHECK(window_for({15e-6, 6e9}).in_flight_bytes == least_window_bytes);
    CHECK(window_for({5e-3, 1.25e9}).in_flight_bytes == doctest::Approx(25e6).epsilon(1e-6));
}

TEST_CASE("no measurement leads out of the bounds") {
    const double values[] = {0, 1, 2.5e7, 1e9, 1e15, std::numeric_limits<double>::infinity(), std::nan(""), -1};
    for (const double bytes_per_s : values) {
        for (const double latency_s : values) {
            const SendWindow window = window_for({latency_s, bytes_per_s});
            CHECK(window.in_flight_bytes >= least_window_bytes);
            CHECK(window.in_flight_bytes <= window.bytes);
            CHECK(window.bytes <= most_window_bytes);
        }
    }
    CHECK(window_for({0, 1e15}).bytes == most_window_bytes);
}
