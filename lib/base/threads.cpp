#include "base/threads.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "base/log.h"

namespace hetero {
namespace {

// Waiting threads spin this long before they sleep: decode steps follow each other within microseconds, but a core that
// a neighbour could use must not be burnt.
constexpr std::chrono::microseconds spin_time{30};

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins until done() or the time is over.
template <class Done>
void spin_until(const Done& done) {
    const auto start = std::chrono::steady_clock::now();
    do {
        for (int i = 0; i < 16; ++i) {
            if (done()) return;
            cpu_relax();
        }
    } while (std::chrono::steady_clock::now() - start < spin_time);
}

}  // namespace

int default_thread_count() { return read_system_limits().threads(); }

// One loop = one generation. The caller writes the plain fields, then opens the generation; a worker that comes while
// it is open enters it; when there are no tasks left, the caller closes it and waits for those who have entered. So a
// worker that has no core just now (a neighbour has it) is not waited for: it will find the generation closed. None is
// inside take_tasks when the fields are written again.
struct ThreadPool::Impl {
    static constexpr std::uint64_t closed = std::uint64_t{1} << 32;  // below it: how many workers have entered

    std::vector<std::thread> workers;
    const FunctionRef<void(std::size_t, int)>* body = nullptr;
    std::size_t tasks = 0;
    std::atomic<std::size_t> next{0};
    std::atomic<std::uint64_t> door{closed};
    std::atomic<std::uint32_t> generation{0};  // may wrap around: workers only ask whether it changed
    std::atomic<std::uint32_t> finished{0};    // of those who have entered
    std::atomic<bool> stopping{false};         // set before the last generation

    void take_tasks(int worker) {
        for (;;) {
            const std::size_t task = next.fetch_add(1, std::memory_order_relaxed);
            if (task >= tasks) return;
            (*body)(task, worker);
        }
    }

    bool enter() {
        std::uint64_t state = door.load(std::memory_order_acquire);
        while ((state & closed) == 0) {
            if (door.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) return true;
        }
        return false;
    }

    // Sequentially consistent: the library decides by a second atomic whether there is anyone to wake.
    void announce() {
        generation.fetch_add(1);
        generation.notify_all();
    }

    void worker_loop(int worker) {
        for (std::uint32_t seen = 0;;) {
            spin_until([&] { return generation.load(std::memory_order_acquire) != seen; });
            generation.wait(seen);
            seen = generation.load();
            if (stopping) return;
            if (!enter()) continue;
            take_tasks(worker);
            finished.fetch_add(1);
            finished.notify_one();
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
    impl_->announce();
    for (std::thread& worker : impl_->workers) worker.join();
}

void ThreadPool::parallel_for(std::size_t tasks, FunctionRef<void(std::size_t, int)> body) {
    if (size_ == 1 || tasks <= 1) {
        for (std::size_t task = 0; task < tasks; ++task) body(task, 0);
        return;
    }
    ++meetings_;
    impl_->body = &body;
    impl_->tasks = tasks;
    impl_->next.store(0, std::memory_order_relaxed);
    impl_->finished.store(0, std::memory_order_relaxed);
    impl_->door.store(0, std::memory_order_release);
    impl_->announce();
    impl_->take_tasks(0);
    const auto entered = static_cast<std::uint32_t>(impl_->door.fetch_or(Impl::closed, std::memory_order_acq_rel));
    spin_until([&] { return impl_->finished.load(std::memory_order_acquire) == entered; });
    for (std::uint32_t now = impl_->finished.load(); now != entered; now = impl_->finished.load()) {
        impl_->finished.wait(now);
    }
}

}  // namespace hetero
