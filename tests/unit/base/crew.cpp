#include "base/crew.h"

#include <doctest/doctest.h>

using namespace hetero;
using namespace std::chrono_literals;

namespace {

constexpr Crew::Clock::time_point start{1h};

}  // namespace

TEST_CASE("a whole crew is asked until a worker is lost") {
    Crew crew(3);
    CHECK(crew.is_whole());
    CHECK(crew.asked(start) == 3);
    crew.lost(0, start);
    CHECK(crew.is_whole());
    crew.lost(2, start);
    CHECK_FALSE(crew.is_whole());
    CHECK(crew.asked(start) == 1);
    crew.lost(5, start);  // more than there are
    CHECK(crew.asked(start) == 0);
}

TEST_CASE("workers come back one by one, a pause apart") {
    Crew crew(3);
    crew.lost(3, start);
    const auto pause = Crew::shortest_pause;
    CHECK(crew.asked(start + pause - 1ns) == 0);
    CHECK(crew.asked(start + pause) == 1);
    CHECK(crew.asked(start + 2 * pause - 1ns) == 1);
    CHECK(crew.asked(start + 2 * pause) == 2);
    CHECK(crew.asked(start + 5 * pause) == 3);
    CHECK(crew.is_whole());
}

TEST_CASE("a neighbour that stays is tried ever more rarely, one that comes back later as at first") {
    Crew crew(1);
    auto now = start;
    std::chrono::nanoseconds pause = Crew::shortest_pause;
    crew.lost(1, now);
    for (int round = 0; round < 12; ++round) {
        CHECK(crew.asked(now + pause - 1ns) == 0);
        now += pause;
        REQUIRE(crew.asked(now) == 1);
        now += 3ms;  // a time slice, and it is lost again
        crew.lost(1, now);
        pause = std::min<std::chrono::nanoseconds>(2 * pause, Crew::longest_pause);
    }
    CHECK(pause == Crew::longest_pause);
    now += pause;
    REQUIRE(crew.asked(now) == 1);
    now += pause;  // alone for as long as the pause was
    crew.lost(1, now);
    CHECK(crew.asked(now + Crew::shortest_pause - 1ns) == 0);
    CHECK(crew.asked(now + Crew::shortest_pause) == 1);
}
