#include "hw/team.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "base/cpus.h"

namespace hetero::hw {
namespace {

using Clock = std::chrono::steady_clock;

void bind_to(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    ::sched_setaffinity(0, sizeof set, &set);  // a wish: without it the figures are only less steady
}

}  // namespace

double best_round_seconds(int threads, double budget_s, const std::function<void(int)>& setup,
                          const std::function<void(int)>& body, std::vector<int> cpus) {
    if (cpus.empty()) cpus = allowed_cpus();
    const bool bind = static_cast<std::size_t>(threads) <= cpus.size();
    std::barrier barrier(threads);
    std::atomic<int> state{0};  // 0: wait for all to exist, 1: go, -1: some thread could not be started
    bool again = true;          // written by worker 0 between two barriers
    double best = std::numeric_limits<double>::infinity();

    auto work = [&](int worker) {
        state.wait(0);
        if (state.load() < 0) return;
        if (bind) bind_to(cpus[static_cast<std::size_t>(worker)]);
        setup(worker);
        barrier.arrive_and_wait();
        const auto begin = Clock::now();
        for (int round = 1; again; ++round) {
            barrier.arrive_and_wait();  // nobody starts before all have seen `again`
            const auto start = Clock::now();
            body(worker);
            barrier.arrive_and_wait();
            if (worker == 0) {
                const auto now = Clock::now();
                best = std::min(best, std::chrono::duration<double>(now - start).count());
                again = round < 2 || std::chrono::duration<double>(now - begin).count() < budget_s;
            }
            barrier.arrive_and_wait();
        }
    };

    std::vector<std::thread> team;
    try {
        for (int worker = 0; worker < threads; ++worker) team.emplace_back(work, worker);
        state.store(1);
    } catch (...) {
        state.store(-1);
        state.notify_all();
        for (std::thread& thread : team) thread.join();
        throw;
    }
    state.notify_all();
    for (std::thread& thread : team) thread.join();
    return best;
}

}  // namespace hetero::hw
