#include "base/threads.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/limits.h"

namespace hetero {
namespace {

// Waiting threads spin this often before they sleep: decode steps follow each other within microseconds, but a core
// that a neighbour could use must not be burnt.
constexpr int spin_rounds = 2000;

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

}  // namespace

int default_thread_count() { return read_system_limits().threads(); }

struct ThreadPool::Impl {
    std::vector<std::thread> workers;
    const std::function<void(std::size_t, int)>* body = nullptr;
    std::size_t tasks = 0;
    std::atomic<std::size_t> next{0};
    std::atomic<std::uint32_t> generation{0};  // odd numbers never occur: +2 per loop, so that wrap-around is harmless
    std::atomic<int> running{0};
    std::atomic<bool> stopping{false};

    void take_tasks(int worker) {
        for (;;) {
            const std::size_t task = next.fetch_add(1, std::memory_order_relaxed);
            if (task >= tasks) return;
            (*body)(task, worker);
        }
    }

    void worker_loop(int worker) {
        std::uint32_t seen = 0;
        for (;;) {
            for (int i = 0; i < spin_rounds && generation.load(std::memory_order_acquire) == seen; ++i) cpu_relax();
            generation.wait(seen, std::memory_order_acquire);
            seen = generation.load(std::memory_order_acquire);
            if (stopping.load(std::memory_order_acquire)) return;
            take_tasks(worker);
            if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) running.notify_one();
        }
    }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()), size_(std::max(1, threads)) {
    for (int worker = 1; worker < size_; ++worker) {
        impl_->workers.emplace_back([impl = impl_.get(), worker] { impl->worker_loop(worker); });
    }
}

ThreadPool::~ThreadPool() {
    impl_->stopping.store(true, std::memory_order_release);
    impl_->generation.fetch_add(2, std::memory_order_acq_rel);
    impl_->generation.notify_all();
    for (std::thread& worker : impl_->workers) worker.join();
}

void ThreadPool::parallel_for(std::size_t tasks, const std::function<void(std::size_t, int)>& body) {
    if (tasks == 0) return;
    if (size_ == 1 || tasks == 1) {
        for (std::size_t task = 0; task < tasks; ++task) body(task, 0);
        return;
    }
    impl_->body = &body;
    impl_->tasks = tasks;
    impl_->next.store(0, std::memory_order_relaxed);
    impl_->running.store(size_ - 1, std::memory_order_relaxed);
    impl_->generation.fetch_add(2, std::memory_order_acq_rel);
    impl_->generation.notify_all();
    impl_->take_tasks(0);
    for (int i = 0; i < spin_rounds && impl_->running.load(std::memory_order_acquire) != 0; ++i) cpu_relax();
    for (int left = impl_->running.load(std::memory_order_acquire); left != 0;
         left = impl_->running.load(std::memory_order_acquire)) {
        impl_->running.wait(left, std::memory_order_acquire);
    }
}

}  // namespace hetero
