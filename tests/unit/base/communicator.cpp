#include "base/communicator.h"

#include <doctest/doctest.h>

#include <string>

#include "support/thread_group.h"

using namespace hetero;
using hetero::test::ThreadGroup;

namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}
std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("parts of unequal length are gathered in the order of ranks") {
    for (const int size : {1, 2, 3, 5}) {
        ThreadGroup(size).run([&](Communicator& group) {
            std::vector<std::size_t> lengths;
            std::string expected;
            for (int rank = 0; rank < size; ++rank) {
                lengths.push_back(static_cast<std::size_t>(rank * 2));  // rank 0 has nothing to give
                expected += std::string(lengths.back(), static_cast<char>('a' + rank));
            }
            const auto own = static_cast<std::size_t>(group.rank());
            const auto mine = bytes_of(std::string(lengths[own], static_cast<char>('a' + group.rank())));
            for (int round = 0; round < 3; ++round) {
                const auto all = group.all_gather(mine, lengths);
                REQUIRE(all.has_value());
                CHECK(text_of(*all) == expected);
                const auto gathered = group.gather(mine, lengths);
                REQUIRE(gathered.has_value());
                CHECK(text_of(*gathered) == (group.is_root() ? expected : ""));
            }
            if (size == 1) return;
            CHECK(group.counters().calls == 6);
            CHECK(group.counters().bytes == (group.is_root() ? 6 : 3) * (expected.size() - mine.size()));
        });
    }
}

TEST_CASE("a gather that is not what was announced is refused") {
    const std::vector<std::size_t> lengths = {3};
    const auto mine = bytes_of("four");
    CHECK_FALSE(single_process().all_gather(mine, lengths).has_value());
    CHECK_FALSE(single_process().all_gather(mine, {}).has_value());
}

TEST_CASE("rank 0's bytes are handed out, whatever their length") {
    for (const std::string text : {"", "x", "a longer one"}) {
        ThreadGroup(3).run([&](Communicator& group) {
            std::vector<std::byte> bytes = group.is_root() ? bytes_of(text) : bytes_of("something else");
            REQUIRE(group.broadcast(bytes).has_value());
            CHECK(text_of(bytes) == text);
        });
    }
}

TEST_CASE("ranks agree on the error of the first one that has one") {
    ThreadGroup(4).run([&](Communicator& group) {
        CHECK(group.agree({}).has_value());
        CHECK(group.failure() == Communicator::Failure::none);
        Status mine;
        if (group.rank() >= 2) mine = fail(Errc::resource, "rank {} has no memory", group.rank());
        const Status all = group.agree(mine);
        REQUIRE_FALSE(all.has_value());
        CHECK(all.error().code == Errc::resource);
        CHECK(all.error().message == "rank 2 has no memory");
        CHECK(group.failure() == (group.rank() == 2 ? Communicator::Failure::here : Communicator::Failure::elsewhere));
    });
    CHECK(single_process().agree({}).has_value());
    CHECK(single_process().agree(fail(Errc::usage, "no")).error().code == Errc::usage);
    CHECK(single_process().failure() == Communicator::Failure::none);
}

TEST_CASE("a long message is cut") {
    ThreadGroup(2).run([&](Communicator& group) {
        Status mine;
        if (group.is_root()) mine = fail(Errc::usage, "{}", std::string(5000, 'x'));
        const Status all = group.agree(mine);
        REQUIRE_FALSE(all.has_value());
        CHECK(all.error().message.substr(0, 1000) == std::string(1000, 'x'));
    });
}
