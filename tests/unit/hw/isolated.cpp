// Work in child processes, and teams of threads.
#include "hw/isolated.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "hw/team.h"

using namespace hetero;

TEST_CASE("what the child returns arrives, more than a pipe holds as well") {
    CHECK(hw::run_isolated([] { return std::string("hello"); }, 10).value() == "hello");
    CHECK(hw::run_isolated([] { return std::string(); }, 10).value().empty());
    const auto large = hw::run_isolated([] { return std::string(3 << 20, 'x'); }, 30);
    REQUIRE(large.has_value());
    CHECK(*large == std::string(3 << 20, 'x'));
}

TEST_CASE("a child that dies, throws or hangs is an error") {
    CHECK(hw::run_isolated(
              []() -> std::string {
                  ::raise(SIGKILL);
                  return "never";
              },
              10)
              .error()
              .message == "died of signal 9");
    CHECK_FALSE(hw::run_isolated([]() -> std::string { throw 1; }, 10).has_value());
    const auto start = std::chrono::steady_clock::now();
    const auto hung = hw::run_isolated(
        []() -> std::string {
            for (;;) ::pause();
        },
        0.1);
    REQUIRE_FALSE(hung.has_value());
    CHECK(hung.error().code == Errc::resource);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("a library that is not there says so") {
    const hw::Library library({"libhetero-nowhere.so.1", "libhetero-nowhere.so.0"});
    CHECK_FALSE(library.loaded());
    CHECK(library.error().find("libhetero-nowhere.so.1") != std::string::npos);
    const bool found = library.symbol<int()>("main") != nullptr;
    CHECK_FALSE(found);
}

TEST_CASE("every worker of a team does every round, setup comes first") {
    constexpr int threads = 3;
    std::vector<std::atomic<int>> rounds(threads), setups(threads);
    std::atomic<bool> early{false};
    const double seconds = hw::best_round_seconds(
        threads, 0.01, [&](int worker) { ++setups[static_cast<std::size_t>(worker)]; },
        [&](int worker) {
            if (setups[static_cast<std::size_t>(worker)] != 1) early = true;
            ++rounds[static_cast<std::size_t>(worker)];
            ::usleep(200);
        });
    CHECK_FALSE(early);
    CHECK(rounds[0] >= 2);
    CHECK(rounds[0] == rounds[1]);
    CHECK(rounds[0] == rounds[2]);
    CHECK(seconds >= 200e-6);
}
