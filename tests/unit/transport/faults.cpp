// Channels that lose, damage, repeat and delay, and sides that die, stall and stop.
#include <set>

#include "transfer.h"

using namespace hetero;
using namespace hetero::test;

namespace {

struct Outcome {
    int succeeded = 0, failed = 0;
    LinkCounters total;  // of both sides, so that a drill can show that its faults took place
};

// Over many seeds: success with the same bytes, or an error on the side that did not succeed. Never a hang (run()).
Outcome drill(const Faults& from_sender, const Faults& from_receiver, int seeds) {
    const kv::State state = make_state();
    Outcome outcome;
    for (int seed = 0; seed < seeds; ++seed) {
        Transfer transfer(state, static_cast<std::uint32_t>(seed), narrow());
        transfer.pair().set_faults(0, from_sender);
        transfer.pair().set_faults(1, from_receiver);
        transfer.run();
        CAPTURE(seed);
        if (transfer.receiver().confirmed()) CHECK(transfer.identical());
        if (transfer.sender().committed()) CHECK(transfer.receiver().confirmed());
        for (const auto& error : {transfer.sender().error(), transfer.receiver().error()}) {
            if (!error) continue;
            CHECK(error->code == Errc::peer);
            CHECK(error->message.find("rank") != std::string::npos);
        }
        for (const Link* link : {&transfer.sender().link(), &transfer.receiver().link()}) {
            outcome.total.resent += link->counters().resent;
            outcome.total.damaged += link->counters().damaged;
            outcome.total.duplicates += link->counters().duplicates;
        }
        ++(transfer.sender().committed() && transfer.receiver().confirmed() ? outcome.succeeded : outcome.failed);
    }
    return outcome;
}

constexpr int seeds = 100;

}  // namespace

TEST_CASE("a suspended job goes on where it was: the time in which nothing ran counts for nobody") {
    const kv::State state = make_state();
    SUBCASE("in the midst of the transfer") {
        Transfer transfer(state, 1, narrow());
        transfer.receiver_pause_s = 1;
        for (int i = 0; i < 100; ++i) transfer.tick();
        REQUIRE(transfer.sender().accepted());
        REQUIRE_FALSE(transfer.over());
        transfer.suspend(60);
        transfer.run(200);
        CHECK(transfer.sender().committed());
        CHECK(transfer.identical());
    }
    SUBCASE("while a lost frame is asked for") {
        Transfer transfer(state, 1, narrow());
        Faults faults;
        faults.drop = 0.5;
        transfer.pair().set_faults(0, faults);
        for (int i = 0; i < 20; ++i) transfer.tick();
        transfer.suspend(60);
        transfer.pair().set_faults(0, {});
        transfer.run(200);
        CHECK(transfer.identical());
    }
    SUBCASE("after it, while one side still computes") {
        Transfer transfer(state, 1);
        transfer.run();
        for (int pauses = 0; pauses < 3; ++pauses) {
            for (int i = 0; i < 77; ++i) transfer.tick();
            transfer.suspend(60);
        }
        for (int i = 0; i < 77; ++i) transfer.tick();
        CHECK_FALSE(transfer.sender().error());
        CHECK_FALSE(transfer.receiver().error());
    }
}

TEST_CASE("duplicates and any order are invisible") {
    Faults faults;
    faults.duplicate = 0.3;
    faults.reorder = 0.3;
    const Outcome outcome = drill(faults, faults, seeds);
    CHECK(outcome.failed == 0);
    CHECK(outcome.total.duplicates > seeds);
}

TEST_CASE("delays of up to half a second are invisible") {
    Faults faults;
    faults.max_delay_s = 0.5;
    CHECK(drill(faults, faults, seeds).failed == 0);
}

TEST_CASE("damaged payloads are sent again") {
    Faults faults;
    faults.flip = 0.1;
    faults.truncate = 0.02;
    const Outcome outcome = drill(faults, {}, seeds);
    CHECK(outcome.succeeded > seeds / 2);
    CHECK(outcome.total.damaged > seeds);
    CHECK(outcome.total.resent > seeds);
}

TEST_CASE("payloads that always arrive damaged end the transfer after three repeats") {
    Faults faults;
    faults.flip = 1;
    const kv::State state = make_state();
    Transfer transfer(state, 1);
    transfer.pair().set_faults(0, faults);
    transfer.run();
    REQUIRE(transfer.sender().error());
    CHECK(transfer.sender().error()->message.find("damaged") != std::string::npos);
    CHECK(transfer.sender().link().counters().resent == 3);
    CHECK(transfer.receiver().error());
}

TEST_CASE("lost frames are asked for again") {
    Faults faults;
    faults.drop = 0.1;
    const Outcome outcome = drill(faults, faults, seeds);
    CHECK(outcome.succeeded > seeds / 2);
    CHECK(outcome.total.resent > seeds);
}

TEST_CASE("damaged headers") {
    Faults faults;
    faults.flip_header = 0.05;
    const Outcome outcome = drill(faults, faults, seeds);
    CHECK(outcome.succeeded > 0);
}

TEST_CASE("all faults at once") {
    Faults faults;
    faults.drop = faults.duplicate = faults.reorder = faults.flip_header = faults.flip = faults.truncate = 0.03;
    faults.max_delay_s = 0.2;
    const Outcome outcome = drill(faults, faults, 3 * seeds);
    CHECK(outcome.succeeded > 0);
}

TEST_CASE("either side dies at any frame: the other ends within the time of silence") {
    const kv::State state = make_state();
    for (const int side : {0, 1}) {
        Transfer whole(state, 1, narrow());
        whole.run();
        for (std::int64_t at = 0; at < whole.pair().sent(side); ++at) {
            Transfer transfer(state, 1, narrow());
            Faults faults;
            faults.die_after = at;
            transfer.pair().set_faults(side, faults);
            transfer.run(60);
            CAPTURE(side);
            CAPTURE(at);
            CHECK(transfer.elapsed_s() < 10);
            if (side == 0) {
                // Whatever the sender did before, what the receiver takes for complete is complete.
                if (transfer.receiver().confirmed()) {
                    CHECK(transfer.identical());
                } else {
                    REQUIRE(transfer.receiver().error());
                    CHECK(transfer.receiver().error()->message.find("no sign of life") != std::string::npos);
                }
            } else if (!transfer.sender().committed()) {
                REQUIRE(transfer.sender().error());
                CHECK(transfer.sender().error()->code == Errc::peer);
            }
        }
    }
}

TEST_CASE("a stall with heartbeats still coming is told apart from death") {
    const kv::State state = make_state();
    for (const int side : {0, 1}) {
        for (std::int64_t at = 0; at < 12; ++at) {
            Transfer transfer(state, 1, narrow());
            Faults faults;
            faults.stall_after = at;
            transfer.pair().set_faults(side, faults);
            transfer.run(60);
            CHECK(transfer.elapsed_s() < 30);
            if (!transfer.sender().committed()) REQUIRE(transfer.sender().error());
            if (!transfer.receiver().confirmed()) REQUIRE(transfer.receiver().error());
            const bool told = (transfer.sender().error() &&
                               transfer.sender().error()->message.find("stalled") != std::string::npos) ||
                              (transfer.receiver().error() &&
                               transfer.receiver().error()->message.find("stalled") != std::string::npos);
            CHECK((told || (transfer.sender().committed() && transfer.receiver().confirmed())));
        }
    }
}

TEST_CASE("noise ends the conversation at once") {
    const kv::State state = make_state();
    for (std::uint32_t seed = 0; seed < 50; ++seed) {
        std::mt19937 random(seed);
        for (const int from : {0, 1}) {
            Transfer transfer(state, seed);
            const std::uint32_t at = random() % 30;
            for (std::uint32_t i = 0; i < at && !transfer.over(); ++i) transfer.tick();
            HeaderBytes noise;
            for (std::byte& b : noise) b = static_cast<std::byte>(random());
            noise[0] = std::byte{0};
            std::vector<std::byte> payload(random() % 100);
            const bool running = !transfer.over();
            transfer.pair().inject(from, noise, payload);
            transfer.run();
            if (running) CHECK((from == 0 ? transfer.receiver().error() : transfer.sender().error()));
        }
    }
}

TEST_CASE("faults as text") {
    const auto all = parse_faults("drop=0.25,dup=0.5,reorder=1,flip=1e-3,delay=20,stall=100,die=200,seed=7");
    REQUIRE_MESSAGE(all, all.error().message);
    CHECK(all->drop == 0.25);
    CHECK(all->duplicate == 0.5);
    CHECK(all->reorder == 1);
    CHECK(all->flip == 1e-3);
    CHECK(all->max_delay_s == 0.02);
    CHECK(all->stall_after == 100);
    CHECK(all->die_after == 200);
    CHECK(all->seed == 7);
    CHECK(all->any());
    const auto seed = parse_faults("seed=9");
    REQUIRE(seed);
    CHECK_FALSE(seed->any());
    CHECK(parse_faults("die=0")->any());
    for (const char* text : {"", "drop", "drop=", "drop=1.1", "drop=-0.1", "drop=nan", "drop=0.1,", "drop=0.1,drop=0.1",
                             "loss=0.1", "stall=1.5", "die=-1", "seed=4294967296", "delay=5ms", "drop =0.1"}) {
        const auto parsed = parse_faults(text);
        REQUIRE_MESSAGE(!parsed, text);
        CHECK(parsed.error().code == Errc::usage);
    }
}

TEST_CASE("the same seed damages the same chunks, whatever else is sent in between") {
    const kv::State state = make_state();
    const auto damaged = [&](std::uint32_t seed, double pause_s) {
        Transfer transfer(state, seed, narrow());
        Faults faults;
        faults.flip = 0.1;
        transfer.pair().set_faults(0, faults);
        transfer.receiver_pause_s = pause_s;  // other acknowledgements and more heartbeats
        transfer.run(1000);
        return std::pair(transfer.sender().link().counters().resent, transfer.receiver().link().counters().damaged);
    };
    std::set<std::uint64_t> counts;
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
        const auto once = damaged(seed, 0);
        CHECK(once == damaged(seed, 0.7));
        counts.insert(once.first);
    }
    CHECK(counts.size() > 3);
}
