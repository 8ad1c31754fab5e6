// A pool of threads for loops that are run again and again, and how many threads this process should use.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/cpus.h"
#include "base/function_ref.h"

namespace hetero {

// CPUs this process may use: the affinity mask, capped by the cgroup CPU quota (rounded up). At least 1.
// Open MPI binds each rank to its cores, so that ranks side by side do not fight for them.
[[nodiscard]] int default_thread_count();

class ThreadPool {
public:
    // `threads` counts the caller; 1 starts none, 0 and less is default_thread_count(). Where the system gives fewer,
    // the pool is smaller: see size(). Where the CPUs are of several NUMA nodes, the threads are divided among these
    // in the ratio of their CPUs, and each stays on its node; the caller is wherever it is.
    explicit ThreadPool(int threads) : ThreadPool(threads, threads == 1 ? std::vector<NumaNode>() : numa_nodes()) {}
    ThreadPool(int threads, const std::vector<NumaNode>& nodes);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    [[nodiscard]] int size() const noexcept { return size_; }
    [[nodiscard]] int nodes() const noexcept;  // that the threads are divided among; 1: they are not

    // Calls body(task, worker) once for each task in [0, tasks), worker in [0, size()); the caller takes part and
    // returns when all are done. Each thread (of very many: each few of them) has a range of the tasks, the first
    // thread the first ones and so on; it takes these before it helps others, those of its own NUMA node first. So what
    // is written in one loop is near in the next one that is divided alike. Which worker takes a task is not fixed:
    // results must not depend on it.
    // What the caller wrote before is seen by body, and what body wrote by the caller afterwards. `body` must not
    // throw, and neither it nor another thread may call parallel_for of the same pool meanwhile.
    void parallel_for(std::size_t tasks, FunctionRef<void(std::size_t task, int worker)> body);

    // How many loops the threads have met for: those of one task, or of one thread, are none.
    [[nodiscard]] std::uint64_t meetings() const noexcept { return meetings_; }
    // How many times a worker had no core while a loop waited for it (Linux; else not known). The pool does without
    // such workers for a while (crew.h).
    [[nodiscard]] std::uint64_t stalls() const noexcept { return stalls_; }

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
    int size_;
    std::uint64_t meetings_ = 0, stalls_ = 0;
};

}  // namespace hetero
