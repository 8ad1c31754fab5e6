// Latency and rate of a link in memory whose channel takes the time that the test says.
#include "transport/link_measure.h"

#include "base/trace.h"
#include "timed_channel.h"
#include "transfer.h"
#include "transport/clock_offset.h"

using namespace hetero;
using namespace hetero::test;

TEST_CASE("a link's latency and rate are found, with little sent over a slow one") {
    struct Case {
        double latency_s, bytes_per_s, limit_s;
    };
    for (const Case& link :
         {Case{20e-6, 10e9, 0.02}, Case{500e-6, 1e9, 0.1}, Case{5e-3, 100e6, 0.6}, Case{1e-3, 1e6, 0.6}}) {
        TimePoint now{};
        MemoryPair pair(1);
        Link there(std::make_unique<TimedChannel>(pair.end(0), now, link.latency_s, link.bytes_per_s),
                   link_options(WireRole::sender), now);
        Link here(std::make_unique<TimedChannel>(pair.end(1), now, link.latency_s, link.bytes_per_s),
                  link_options(WireRole::receiver), now);
        LinkMeasure measure(there);
        while (!measure.rate() && now < TimePoint{} + std::chrono::seconds(5)) {
            measure.step(now);
            here.step(now);
            now += std::chrono::microseconds(2);
        }
        REQUIRE(measure.rate());
        CAPTURE(link.bytes_per_s);
        CHECK(measure.rate()->latency_s == doctest::Approx(link.latency_s).epsilon(0.15));
        CHECK(measure.rate()->bytes_per_s == doctest::Approx(link.bytes_per_s).epsilon(0.05));
        CHECK(std::chrono::duration<double>(now - TimePoint{}).count() < link.limit_s);
    }
}

TEST_CASE("on a slow link, or a busy machine, fewer round trips are measured") {
    for (const double latency_s : {20e-6, 20e-3}) {
        TimePoint now{};
        MemoryPair pair(1);
        Link there(std::make_unique<TimedChannel>(pair.end(0), now, latency_s, 10e9), link_options(WireRole::sender),
                   now);
        Link here(std::make_unique<TimedChannel>(pair.end(1), now, latency_s, 10e9), link_options(WireRole::receiver),
                  now);
        LinkMeasure measure(there, {2000, 2});
        for (; !measure.rate() && now < TimePoint{} + std::chrono::seconds(200);
             now += std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(latency_s / 20))) {
            measure.step(now);
            here.step(now);
        }
        REQUIRE(measure.rate());
        CAPTURE(latency_s);
        const std::size_t trips = measure.round_trips_s().size();
        if (latency_s < 1e-3) {
            CHECK(trips == 2000);
        } else {  // 2 s of 40 ms each and some
            CHECK(trips >= 40);
            CHECK(trips <= 51);
        }
        CHECK(measure.rate()->latency_s == doctest::Approx(latency_s).epsilon(0.15));
    }
}

TEST_CASE("a link that is to carry less than it can is not filled to find that out") {
    TimePoint now{};
    MemoryPair pair(1);
    Link there(std::make_unique<TimedChannel>(pair.end(0), now, 20e-6, 10e9), link_options(WireRole::sender), now);
    Link here(std::make_unique<TimedChannel>(pair.end(1), now, 20e-6, 10e9), link_options(WireRole::receiver), now);
    LinkMeasure measure(there, {}, 1'000'000);
    for (; !measure.rate() && now < TimePoint{} + std::chrono::seconds(5); now += std::chrono::microseconds(2)) {
        measure.step(now);
        here.step(now);
    }
    REQUIRE(measure.rate());
    CHECK(measure.rate()->bytes_per_s == 1e6);
    CHECK(there.counters().bytes_sent < (65U << 10) + 40 * 128);
}

TEST_CASE("lost probes are sent again, and a peer that is gone ends the measurement") {
    const kv::State state = make_state();
    TimePoint now{};
    MemoryPair pair(4);
    Link there(pair.end(0), link_options(WireRole::sender), now),
        here(pair.end(1), link_options(WireRole::receiver), now);
    Faults faults;
    faults.drop = 0.2;
    pair.set_faults(0, faults);
    LinkMeasure measure(there);
    const auto run = [&](double limit_s, bool peer) {
        for (const TimePoint end = now + std::chrono::milliseconds(static_cast<int>(limit_s * 1e3));
             now < end && !measure.rate() && !there.error(); now += std::chrono::milliseconds(1)) {
            pair.set_time(now);
            measure.step(now);
            if (peer) here.step(now);
        }
    };
    SUBCASE("lost") {
        run(600, true);
        CHECK(measure.rate());
    }
    SUBCASE("gone") {
        run(0.01, true);
        run(30, false);
        REQUIRE(there.error());
        CHECK(there.error()->message == "rank 1: no sign of life for 8 s");
    }
    SUBCASE("stalled") {
        faults.stall_after = 0;  // signs of life alone
        pair.set_faults(0, faults);
        run(30, true);
        REQUIRE(there.error());
        CHECK(there.error()->message == "rank 1: stalled: no probe has been answered for 8 s");
    }
    SUBCASE("left") {
        here.say_bye();
        run(30, true);
        REQUIRE(there.error());
        CHECK(there.error()->message == "rank 1 ended before the link was measured");
    }
}

TEST_CASE("a reader finds how far the peer's time line is from its own clock") {
    using namespace std::chrono_literals;
    const TimePoint start{std::chrono::hours(5)};
    TimePoint now = start;
    MemoryPair pair(1);
    // The way back takes as long as the way there.
    Link peer(std::make_unique<TimedChannel>(pair.end(0), now, 300e-6, 1e9), link_options(WireRole::sender), now);
    Link here(std::make_unique<TimedChannel>(pair.end(1), now, 300e-6, 1e9), link_options(WireRole::receiver), now);
    ClockOffset clock(here);
    const std::chrono::nanoseconds shift = -12345678us;
    trace::set_offset(shift);  // of the peer: nobody here asks for it
    for (; !clock.done() && now < start + 10s; now += 5us) {
        here.step(now);
        peer.step(now);
        clock.step(now);
    }
    trace::set_offset(0ns);
    REQUIRE(clock.done());
    REQUIRE(clock.offset());
    CHECK(std::chrono::abs(*clock.offset() - shift) <= clock.round_trip() / 2);
    CHECK(clock.round_trip() < 700us);
    CHECK(clock.round_trip() >= 600us);
}
