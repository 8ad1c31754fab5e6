// Threads that do the same timed work at the same time, each bound to a CPU of its own where there are enough.
#pragma once
#include <functional>
#include <vector>

namespace hetero::hw {

// Runs setup(worker) once on every thread (it touches the worker's memory first, so that it is near), then body(worker)
// on all at once again and again until `budget_s` is used up, at least twice. Returns the shortest time that a round
// took until the last thread was done, in seconds. Neither may throw. `cpus`: where they run; empty: all that this
// process may use.
double best_round_seconds(int threads, double budget_s, const std::function<void(int worker)>& setup,
                          const std::function<void(int worker)>& body, std::vector<int> cpus = {});

}  // namespace hetero::hw
