#include "base/threads.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "base/log.h"

namespace hetero {
namespace {

// Waiting threads spin this often before they sleep: decode steps follow each other within microseconds, but a core
// that a neighbour could use must not be burnt.
constexpr int spin_rounds = 2000;

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

int default_thread_count() { return read_system_limits().threads(); }

// One loop = one generation. The caller writes the plain fields, then raises `generation`; every worker takes part in
// every generation and lowers `running` once, as its last act in it; the caller returns when `running` is 0. So no
// worker is inside take_tasks when the fields are written again, and none can skip a generation or see one twice.
struct ThreadPool::Impl {
    std::vector<std::thread> workers;
    const std::function<void(std::size_t, int)>* body = nullptr;
    std::size_t tasks = 0;
    std::atomic<std::size_t> next{0};
    std::atomic<std::uint32_t> generation{0};  // may wrap around: workers only ask whether it changed
    std::atomic<int> running{0};
    bool stopping = false;  // written before the last generation

    void take_tasks(int worker) {
        for (;;) {
            const std::size_t task = next.fetch_add(1, std::memory_order_relaxed);
            if (task >= tasks) return;
            (*body)(task, worker);
        }
    }

    // Sequentially consistent: the library decides by a second atomic whether there is anyone to wake.
    void start_generation() {
        generation.fetch_add(1);
        generation.notify_all();
    }

    void worker_loop(int worker) {
        for (std::uint32_t seen = 0;; ++seen) {
            for (int i = 0; i < spin_rounds && generation.load(std::memory_order_acquire) == seen; ++i) cpu_relax();
            generation.wait(seen);
            if (stopping) return;
            take_tasks(worker);
            if (running.fetch_sub(1) == 1) running.notify_one();
        }
    }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()), size_(1) {
    if (threads <= 0) threads = default_thread_count();
    for (int worker = 1; worker < threads; ++worker) {
        try {
            impl_->workers.emplace_back([impl = impl_.get(), worker] { impl->worker_loop(worker); });
        } catch (const std::exception& error) {  // a limit of the user or the cgroup on processes
            log::warn("{} threads asked for, going on with {}: {}", threads, size_, error.what());
            break;
        }
        ++size_;
    }
}

ThreadPool::~ThreadPool() {
    impl_->stopping = true;
    impl_->start_generation();
    for (std::thread& worker : impl_->workers) worker.join();
}

void ThreadPool::parallel_for(std::size_t tasks, const std::function<void(std::size_t, int)>& body) {
    if (size_ == 1 || tasks <= 1) {
        for (std::size_t task = 0; task < tasks; ++task) body(task, 0);
        return;
    }
    impl_->body = &body;
    impl_->tasks = tasks;
    impl_->next.store(0, std::memory_order_relaxed);
    impl_->running.store(size_ - 1, std::memory_order_relaxed);
    impl_->start_generation();
    impl_->take_tasks(0);
    for (int i = 0; i < spin_rounds && impl_->running.load(std::memory_order_acquire) != 0; ++i) cpu_relax();
    for (int left = impl_->running.load(); left != 0; left = impl_->running.load()) impl_->running.wait(left);
}

}  // namespace hetero
