#include "base/threads.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "base/cpus.h"
#include "base/limits.h"

using namespace hetero;

TEST_CASE("every task runs exactly once, on a worker of the pool") {
    for (const int threads : {1, 2, 3, 4, 7, 16, 40}) {
        ThreadPool pool(threads);
        REQUIRE(pool.size() == threads);
        for (const std::size_t tasks : {0U, 1U, 2U, 3U, 15U, 16U, 17U, 1000U}) {
            std::vector<std::atomic<int>> runs(tasks);
            std::atomic<int> outside{0};
            pool.parallel_for(tasks, [&](std::size_t task, int worker) {
                runs[task].fetch_add(1, std::memory_order_relaxed);
                if (worker < 0 || worker >= threads) outside.fetch_add(1);
            });
            CHECK(outside == 0);
            for (std::size_t task = 0; task < tasks; ++task)
                REQUIRE_MESSAGE(runs[task] == 1, "task ", task, " of ", tasks, ", ", threads, " threads");
        }
    }
}

TEST_CASE("a worker runs one task at a time, so that its scratch memory is its own") {
    ThreadPool pool(4);
    std::vector<std::atomic<int>> busy(4);
    std::atomic<int> clashes{0};
    for (int loop = 0; loop < 200; ++loop) {
        pool.parallel_for(64, [&](std::size_t, int worker) {
            if (busy[static_cast<std::size_t>(worker)].exchange(1) != 0) clashes.fetch_add(1);
            std::this_thread::yield();
            busy[static_cast<std::size_t>(worker)].store(0);
        });
    }
    CHECK(clashes == 0);
}

TEST_CASE("plain memory written before a loop is seen in it, and what it wrote is seen after it") {
    ThreadPool pool(4);
    std::vector<std::uint64_t> values(257, 1);  // no atomics: a race shows as a wrong sum, and under ThreadSanitizer
    for (std::uint64_t loop = 0; loop < 20'000; ++loop) {
        const std::size_t tasks = 1 + loop % values.size();
        const std::uint64_t before =
            std::accumulate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(tasks), std::uint64_t{0});
        pool.parallel_for(tasks, [&values, loop](std::size_t task, int) { values[task] += loop; });
        const std::uint64_t after =
            std::accumulate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(tasks), std::uint64_t{0});
        REQUIRE(after == before + loop * tasks);
    }
}

TEST_CASE("pools that sleep between loops, and pools that end right after one, lose no wake-up") {
    for (int round = 0; round < 300; ++round) {
        ThreadPool pool(3);
        std::atomic<int> runs{0};
        if (round % 2 == 0) pool.parallel_for(5, [&](std::size_t, int) { runs.fetch_add(1); });
        if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than workers spin
        pool.parallel_for(3, [&](std::size_t, int) { runs.fetch_add(1); });
        REQUIRE(runs == (round % 2 == 0 ? 8 : 3));
    }
}

TEST_CASE("several pools work side by side and inside each other") {
    ThreadPool outer(3);
    std::vector<std::unique_ptr<ThreadPool>> inner;
    for (int i = 0; i < 3; ++i) inner.push_back(std::make_unique<ThreadPool>(2));
    std::atomic<int> runs{0};
    for (int loop = 0; loop < 50; ++loop) {
        outer.parallel_for(9, [&](std::size_t, int worker) {
            inner[static_cast<std::size_t>(worker)]->parallel_for(4, [&](std::size_t, int) { runs.fetch_add(1); });
        });
    }
    CHECK(runs == 50 * 9 * 4);
}

TEST_CASE("a pool asked for less than one thread has as many as the process may use") {
    for (const int threads : {0, -3}) {
        ThreadPool pool(threads);
        CHECK(pool.size() == default_thread_count());
        std::atomic<int> runs{0};
        pool.parallel_for(3, [&](std::size_t, int) { runs.fetch_add(1); });
        CHECK(runs == 3);
    }
}

TEST_CASE("each thread takes the tasks of its own range before others'") {
    ThreadPool pool(4);
    // Every worker holds its first task until all have one.
    std::vector<std::size_t> first(4);
    std::atomic<int> arrived{0};
    pool.parallel_for(10, [&](std::size_t task, int worker) {
        if (arrived.load() == 4) return;
        first[static_cast<std::size_t>(worker)] = task;
        arrived.fetch_add(1);
        while (arrived.load() < 4) std::this_thread::yield();
    });
    CHECK(first == std::vector<std::size_t>{0, 2, 5, 7});
}

TEST_CASE("of several NUMA nodes each has a part of the tasks, and helps with the others' when it is through") {
    const std::vector<int> cpus = allowed_cpus();
    REQUIRE_FALSE(cpus.empty());
    // A machine of three nodes, one of memory alone; both others are the CPUs of this one.
    const std::vector<NumaNode> nodes = {{0, cpus}, {1, {}}, {2, cpus}};
    ThreadPool pool(4, nodes);
    REQUIRE(pool.size() == 4);
    REQUIRE(pool.nodes() == 2);
    for (const std::size_t tasks : {2U, 3U, 4U, 17U, 1000U}) {
        std::vector<std::atomic<int>> runs(tasks);
        pool.parallel_for(tasks, [&](std::size_t task, int) { runs[task].fetch_add(1); });
        for (std::size_t task = 0; task < tasks; ++task) REQUIRE(runs[task] == 1);
    }
    // Every worker holds its first task until all have one.
    std::vector<std::size_t> first(4);
    std::atomic<int> arrived{0};
    pool.parallel_for(4, [&](std::size_t task, int worker) {
        first[static_cast<std::size_t>(worker)] = task;
        arrived.fetch_add(1);
        while (arrived.load() < 4) std::this_thread::yield();
    });
    CHECK(std::min(first[0], first[1]) == 0);
    CHECK(std::max(first[0], first[1]) == 1);
    CHECK(std::min(first[2], first[3]) == 2);
    CHECK(std::max(first[2], first[3]) == 3);
    // As many threads as the machine has, of nodes of unlike size.
    ThreadPool lopsided(4, {{0, {cpus[0]}}, {1, {cpus[0], cpus[0] + 1, cpus[0] + 2}}});
    CHECK(lopsided.nodes() == 2);
    // Threads that do not reach all nodes are free.
    ThreadPool alone(1, nodes);
    CHECK(alone.nodes() == 1);
}

#ifdef __linux__
namespace {

// Keeps the calling thread on one CPU, and the CPU busy with one more thread, for its lifetime.
class BusyCpu {
public:
    explicit BusyCpu(int cpu) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        REQUIRE(sched_getaffinity(0, sizeof(before_), &before_) == 0);
        REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
        neighbour_ = std::thread([this] {  // on the same CPU: threads are where the one that starts them is
            while (!stopping_.load(std::memory_order_relaxed)) {
            }
        });
    }
    ~BusyCpu() {
        stopping_ = true;
        neighbour_.join();
        sched_setaffinity(0, sizeof(before_), &before_);
    }

private:
    cpu_set_t before_{};
    std::atomic<bool> stopping_{false};
    std::thread neighbour_;
};

int first_cpu() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &set)) return cpu;
    return -1;
}

}  // namespace

TEST_CASE("a worker that shares its core with a neighbour is noticed and done without, and no task is lost") {
    const int cpu = first_cpu();
    REQUIRE(cpu >= 0);
    std::uint64_t ran_ns = 0;  // 0 where the kernel has the file, but does not count
    if (!(std::ifstream("/proc/thread-self/schedstat") >> ran_ns) || ran_ns == 0) {
        MESSAGE("skipped: this system does not tell how long a thread waits for a core (/proc/thread-self/schedstat)");
        return;
    }
    const BusyCpu busy(cpu);
    ThreadPool pool(2);
    std::size_t loops = 0, runs = 0, alone = 0;
    for (; alone == 0 && loops < 500; ++loops) {
        std::atomic<std::size_t> done{0};
        const std::uint64_t before = pool.meetings();
        pool.parallel_for(2, [&](std::size_t, int) {  // more than a time slice of work each
            const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(10);
            while (std::chrono::steady_clock::now() < end) {
            }
            done.fetch_add(1);
        });
        runs += done;
        if (pool.meetings() == before) ++alone;
    }
    CHECK(runs == 2 * loops);
    CHECK(pool.stalls() > 0);
    CHECK(alone == 1);
}
#endif
