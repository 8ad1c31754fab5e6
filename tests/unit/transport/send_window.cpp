#include "transport/send_window.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "timed_channel.h"
#include "transfer.h"

using namespace hetero;
using namespace hetero::test;

// The clock is the test's own: what is held to a bound here does not depend on the machine.
TEST_CASE("a link is filled, however far and fast") {
    StateShape shape;
    shape.layers = 16;
    shape.kv_heads = 8;
    shape.head_dim = 64;
    shape.tokens = {2048};
    shape.tokens_per_chunk = 256;  // 256 KiB
    const auto state = synthetic_state(shape, 1);
    REQUIRE(state);
    const auto bytes = static_cast<double>(state->header.payload_bytes());
    const auto share = [&](const LinkRate& link, const SendWindow& window) {
        Transfer transfer(*state, 1, {}, 0, [&](std::unique_ptr<Channel> end, const TimePoint& now) {
            return std::make_unique<TimedChannel>(std::move(end), now, link.latency_s, link.bytes_per_s);
        });
        transfer.sender().set_window(window);
        const std::chrono::microseconds tick(std::max(20, static_cast<int>(link.latency_s * 1e6 / 40)));
        double begin_s = -1;
        while (!transfer.over() && transfer.elapsed_s() < 60) {
            transfer.tick(tick);
            if (begin_s < 0 && transfer.sender().accepted()) begin_s = transfer.elapsed_s();
        }
        REQUIRE(transfer.identical());
        const double ends_s = 4 * link.latency_s;  // the last chunk and its answer, COMMIT and its
        return bytes / (transfer.elapsed_s() - begin_s - ends_s) / link.bytes_per_s;
    };
    for (const LinkRate link : {LinkRate{20e-6, 1.2e9}, LinkRate{1e-3, 1e9}, LinkRate{10e-3, 400e6}}) {
        CAPTURE(link.bytes_per_s);
        CHECK(share(link, window_for(link)) > 0.97);
    }
    const LinkRate far{10e-3, 400e6};
    CHECK(share(far, {least_in_flight_bytes, least_in_flight_bytes}) < 0.6);  // what the window is for
}

TEST_CASE("chunks larger than the window go two at a time") {
    StateShape shape;
    shape.kv_heads = 8;
    shape.head_dim = 64;
    shape.tokens = {1024};
    shape.tokens_per_chunk = 256;
    const auto state = synthetic_state(shape, 1);
    REQUIRE(state);
    Transfer transfer(*state, 1);
    transfer.sender().set_window({1000, 1000});
    std::uint64_t most = 0;
    while (!transfer.over() && transfer.elapsed_s() < 60) {
        transfer.tick();
        if (transfer.sender().accepted() && !transfer.sender().committed())
            most = std::max(most, transfer.sender().link().unacknowledged_bytes());
    }
    CHECK(transfer.identical());
    CHECK(most >= 2 * (256U << 10));
    CHECK(most < 3 * (256U << 10));
}

TEST_CASE("the window follows from rate and latency") {
    CHECK(window_for({0.5e-6, 0.9e9}).bytes == least_window_bytes);
    CHECK(window_for({0.5e-6, 10e9}).bytes == doctest::Approx(10.02e6).epsilon(1e-6));  // 1 ms
    CHECK(window_for({100e-6, 1.25e9}).bytes == least_window_bytes);
    CHECK(window_for({50e-3, 1e9}).bytes == doctest::Approx(201e6).epsilon(1e-6));  // far: two round trips of 100 ms
    CHECK(window_for({100e-6, 25e6}).bytes == least_window_bytes);
}

TEST_CASE("the carrier is given what two round trips carry, and little of it where they are short") {
    CHECK(window_for({0.5e-6, 8e9}).in_flight_bytes == least_in_flight_bytes);
    CHECK(window_for({15e-6, 6e9}).in_flight_bytes == least_in_flight_bytes);
    CHECK(window_for({5e-3, 1.25e9}).in_flight_bytes == doctest::Approx(25e6).epsilon(1e-6));
}

TEST_CASE("no measurement leads out of the bounds") {
    const double values[] = {0, 1, 2.5e7, 1e9, 1e15, std::numeric_limits<double>::infinity(), std::nan(""), -1};
    for (const double bytes_per_s : values) {
        for (const double latency_s : values) {
            const SendWindow window = window_for({latency_s, bytes_per_s});
            CHECK(window.in_flight_bytes >= least_in_flight_bytes);
            CHECK(window.in_flight_bytes <= window.bytes);
            CHECK(window.bytes <= most_window_bytes);
        }
    }
    CHECK(window_for({0, 1e15}).bytes == most_window_bytes);
}
