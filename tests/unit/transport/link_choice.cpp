#include "transport/link_choice.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

using namespace hetero::transport;

TEST_CASE("chunks and window follow from rate and latency") {
    // Shared memory, 4 GB/s.
    CHECK(choose_for({0.5e-6, 4e9}).chunk_bytes == 1U << 20);
    CHECK(choose_for({0.5e-6, 4e9}).window_bytes == doctest::Approx(40.008e6).epsilon(1e-6));
    // 1 Gbit/s: 125 kB, the next power of two.
    CHECK(choose_for({100e-6, 125e6}).chunk_bytes == 128U << 10);
    CHECK(choose_for({100e-6, 125e6}).window_bytes == doctest::Approx(1.3e6).epsilon(1e-6));
    // Fast and far: two round trips of 100 ms.
    CHECK(choose_for({50e-3, 1e9}).window_bytes == doctest::Approx(210e6).epsilon(1e-6));
}

TEST_CASE("no measurement leads out of the bounds") {
    const double values[] = {0, 1, 2.5e7, 1e9, 1e15, std::numeric_limits<double>::infinity(), std::nan(""), -1};
    for (const double bytes_per_s : values) {
        for (const double latency_s : values) {
            const LinkChoice choice = choose_for({latency_s, bytes_per_s});
            CHECK(choice.chunk_bytes >= 64U << 10);
            CHECK(choice.chunk_bytes <= 1U << 20);
            CHECK(std::has_single_bit(choice.chunk_bytes));
            CHECK(choice.window_bytes >= 1U << 20);
            CHECK(choice.window_bytes <= 256U << 20);
        }
    }
    CHECK(choose_for({0, 0}).chunk_bytes == 64U << 10);
    CHECK(choose_for({0, 1e15}).chunk_bytes == 1U << 20);
    CHECK(choose_for({0, 1e15}).window_bytes == 256U << 20);
}
