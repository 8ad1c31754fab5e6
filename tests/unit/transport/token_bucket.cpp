// Rates are held against a clock of the test's own, by counting bytes.
#include "transport/token_bucket.h"

#include "transfer.h"

using namespace hetero;
using namespace hetero::test;

TEST_CASE("a transfer never exceeds its rate, and uses it") {
    StateShape shape;
    shape.layers = 4;
    shape.head_dim = 64;
    shape.tokens = {1000};
    shape.tokens_per_chunk = 64;
    const auto state = synthetic_state(shape, 1);
    REQUIRE_MESSAGE(state, state.error().message);
    constexpr std::uint64_t rate = 500'000;  // of about 2 MB
    const double largest_frame = 64.0 * 2 * 64 * 2 + frame_header_bytes;
    for (const double drop : {0.0, 0.05}) {  // what is sent again counts too
        Transfer transfer(*state, 3, {}, rate);
        Faults faults;
        faults.drop = drop;
        transfer.pair().set_faults(0, faults);
        std::vector<double> sent;  // at each tick of 5 ms
        while (!transfer.over() && transfer.elapsed_s() < 60) {
            transfer.tick();
            sent.push_back(static_cast<double>(transfer.sender().link().counters().bytes_sent));
        }
        REQUIRE(transfer.identical());
        CHECK((transfer.sender().link().counters().resent > 0) == (drop > 0));
        // In every window of time, not only from the start.
        for (std::size_t from = 0; from < sent.size(); from += 7)
            for (std::size_t to = from; to < sent.size(); to += 5) {
                const double allowed = rate * (0.005 * static_cast<double>(to - from) + 0.02) + 2 * largest_frame;
                if (sent[to] - sent[from] > allowed) FAIL_CHECK(from, " to ", to, ": ", sent[to] - sent[from]);
            }
        if (drop == 0) CHECK(transfer.elapsed_s() < 1.05 * sent.back() / rate + 0.1);
    }
}

TEST_CASE("a frame larger than the burst passes, and is paid for") {
    TimePoint now{};
    TokenBucket bucket(1000);
    bucket.refill(now);
    CHECK(bucket.open());
    bucket.take(5020);  // 20 of them were saved
    CHECK_FALSE(bucket.open());
    bucket.refill(now + std::chrono::seconds(4));
    CHECK_FALSE(bucket.open());
    bucket.refill(now + std::chrono::milliseconds(5001));
    CHECK(bucket.open());
    bucket.refill(now + std::chrono::hours(1));  // a long pause saves no more than the burst
    bucket.take(21);
    CHECK_FALSE(bucket.open());
    CHECK(TokenBucket(0).open());
}
