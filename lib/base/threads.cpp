#include "base/threads.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <thread>
#include <vector>

#include "base/crew.h"
#include "base/limits.h"
#include "base/log.h"

namespace hetero {
namespace {

// Waiting threads spin this long before they sleep: decode steps follow each other within microseconds, but a core that
// a neighbour could use must not be burnt.
constexpr std::chrono::microseconds spin_time{30};
// A worker that had no core for so long has lost it to someone who computes, too.
constexpr std::chrono::microseconds stall_time{300};
constexpr std::size_t most_parts = 16;     // of the tasks: threads without work look at all of them
constexpr std::size_t most_watched = 256;  // workers: each takes a file descriptor

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins until done() or the time is over; says whether it is done.
template <class Done>
bool spin_until(const Done& done) {
    const auto start = std::chrono::steady_clock::now();
    do {
        for (int i = 0; i < 16; ++i) {
            if (done()) return true;
            cpu_relax();
        }
    } while (std::chrono::steady_clock::now() - start < spin_time);
    return false;
}

// How long a thread has waited for a core although it could have run: the second number of its schedstat in proc(5).
class CoreWait {
public:
    CoreWait() = default;
    ~CoreWait() {
        if (const int fd = fd_; fd >= 0) ::close(fd);
    }
    CoreWait(const CoreWait&) = delete;
    CoreWait& operator=(const CoreWait&) = delete;

    void open() noexcept { fd_ = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC); }  // of this thread

    // 0 where the system does not tell.
    [[nodiscard]] std::chrono::nanoseconds read() const noexcept {
        char text[64];
        const int fd = fd_;
        const ssize_t n = fd < 0 ? 0 : ::pread(fd, text, sizeof text, 0);
        const char *end = text + (n > 0 ? n : 0), *second = std::find(static_cast<const char*>(text), end, ' ');
        std::int64_t waited_ns = 0;
        if (second != end) std::from_chars(second + 1, end, waited_ns);
        return std::chrono::nanoseconds(waited_ns);
    }

private:
    std::atomic<int> fd_{-1};  // opened by one thread, read by another
};

// Of nodes with CPUs, the one of thread `thread` of `threads`: they are divided in the ratio of the CPUs.
std::size_t node_of_thread(const std::vector<NumaNode>& nodes, std::size_t thread, std::size_t threads) {
    std::size_t cpus = 0, before = 0;
    for (const NumaNode& node : nodes) cpus += node.cpus.size();
    for (std::size_t node = 0; node + 1 < nodes.size(); ++node) {
        before += nodes[node].cpus.size();
        if ((2 * thread + 1) * cpus < 2 * threads * before) return node;
    }
    return nodes.size() - 1;
}

// A wish: without it memory may be far.
void keep_on(const std::vector<int>& cpus) {
    const int size = cpus.back() + 1;
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(size));
    if (set == nullptr) return;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(size));
    CPU_ZERO_S(bytes, set);
    for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), bytes, set);
    ::sched_setaffinity(0, bytes, set);
    CPU_FREE(set);
}

}  // namespace

int default_thread_count() { return read_system_limits().threads(); }

// One loop = one generation. The caller writes the plain fields, then opens the generation; a worker that comes while
// it is open enters it; when there are no tasks left, the caller closes it and waits for those who have entered. So a
// worker that has no core just now (a neighbour has it) is not waited for: it will find the generation closed. None is
// inside take_tasks when the fields are written again.
struct ThreadPool::Impl {
    static constexpr std::uint32_t closed = std::uint32_t{1} << 31;  // below it: how many workers may still enter

    struct alignas(64) Worker {
        std::atomic<bool> inside{false};  // the generation
        CoreWait core_wait;
        std::chrono::nanoseconds waited_before{-1};  // of the caller; -1: it is not watched
        std::size_t part = 0;
    };
    // Threads that lie side by side on one NUMA node, and what they take first.
    struct alignas(64) Part {
        std::size_t node = 0, threads = 0, end = 0;
        std::atomic<std::size_t> next{0};
    };
    struct Node {
        std::vector<int> cpus;  // empty where there is one node
        std::size_t first = 0, parts = 0;
    };

    Impl(std::size_t n_threads, const std::vector<NumaNode>& numa)
        : workers(n_threads - 1), nodes(numa.size()), crew(static_cast<int>(workers.size())) {
        const std::size_t threads_of_part = (n_threads + most_parts - 1) / most_parts;
        for (std::size_t thread = 0; thread < n_threads; ++thread) {
            const std::size_t node = node_of_thread(numa, thread, n_threads);
            if (parts.empty() || parts.back().node != node || parts.back().threads == threads_of_part) {
                if (nodes[node].parts++ == 0) nodes[node].first = parts.size();
                parts.emplace_back().node = node;
            }
            ++parts.back().threads;
            if (thread != 0) workers[thread - 1].part = parts.size() - 1;
        }
        for (std::size_t node = 0; node < numa.size() && numa.size() > 1; ++node) nodes[node].cpus = numa[node].cpus;
    }

    std::vector<std::thread> threads;
    std::vector<Worker> workers;
    std::deque<Part> parts;  // they do not move
    std::vector<Node> nodes;
    Crew crew;  // of the caller
    const FunctionRef<void(std::size_t, int)>* body = nullptr;
    std::atomic<std::uint32_t> door{closed};
    std::atomic<std::uint32_t> generation{0};  // may wrap around: workers only ask whether it changed
    std::atomic<std::uint32_t> finished{0};    // of those who have entered
    std::atomic<bool> stopping{false};         // set before the last generation

    void divide(std::size_t tasks) {
        std::size_t begin = 0, before = 0;
        for (Part& part : parts) {
            before += part.threads;
            part.next.store(begin, std::memory_order_relaxed);
            begin = part.end = tasks * before / (workers.size() + 1);
        }
    }

    // Those of the own part, then of the others of its node, then the rest.
    void take_tasks(int worker, std::size_t own) {
        const Node& near = nodes[parts[own].node];
        for (std::size_t i = 0; i < parts.size(); ++i) {
            Part& part = parts[i < near.parts ? near.first + (own - near.first + i) % near.parts
                                              : (near.first + i) % parts.size()];
            while (part.next.load(std::memory_order_relaxed) < part.end) {
                const std::size_t task = part.next.fetch_add(1, std::memory_order_relaxed);
                if (task >= part.end) break;
                (*body)(task, worker);
            }
        }
    }

    [[nodiscard]] std::size_t part_of_caller() const {
        if (nodes.size() == 1) return 0;
        const int cpu = ::sched_getcpu();
        for (const Node& node : nodes) {
            if (std::binary_search(node.cpus.begin(), node.cpus.end(), cpu)) return node.first;
        }
        return 0;
    }

    bool enter() {
        std::uint32_t state = door.load(std::memory_order_acquire);
        while (state != 0 && (state & closed) == 0) {
            if (door.compare_exchange_weak(state, state - 1, std::memory_order_acq_rel)) return true;
        }
        return false;
    }

    // Sequentially consistent: the library decides by a second atomic whether there is anyone to wake.
    void announce() {
        generation.fetch_add(1);
        generation.notify_all();
    }

    void worker_loop(std::size_t index) {
        Worker& self = workers[index];
        if (index < most_watched) self.core_wait.open();
        if (nodes.size() > 1) keep_on(nodes[parts[self.part].node].cpus);
        for (std::uint32_t seen = 0;;) {
            spin_until([&] { return generation.load(std::memory_order_acquire) != seen; });
            generation.wait(seen);
            seen = generation.load();
            if (stopping) return;
            if (!enter()) continue;
            self.inside.store(true, std::memory_order_relaxed);
            take_tasks(static_cast<int>(index) + 1, self.part);
            self.inside.store(false, std::memory_order_relaxed);
            finished.fetch_add(1);
            finished.notify_one();
        }
    }

    // Waits for so many workers. Returns how many of them had no core meanwhile.
    int wait_for(std::uint32_t entered) {
        if (spin_until([&] { return finished.load(std::memory_order_acquire) == entered; })) return 0;
        for (Worker& worker : workers) {
            const bool inside = worker.inside.load(std::memory_order_relaxed);
            worker.waited_before = inside ? worker.core_wait.read() : std::chrono::nanoseconds(-1);
        }
        const Crew::Clock::time_point start = Crew::Clock::now();
        for (std::uint32_t now = finished.load(); now != entered; now = finished.load()) finished.wait(now);
        if (Crew::Clock::now() - start < stall_time) return 0;
        int stalled = 0;
        for (const Worker& worker : workers) {
            if (worker.waited_before.count() < 0) continue;
            if (worker.core_wait.read() - worker.waited_before >= stall_time) ++stalled;
        }
        return stalled;
    }
};

ThreadPool::ThreadPool(int threads, const std::vector<NumaNode>& nodes) : size_(1) {
    if (threads <= 0) threads = default_thread_count();
    std::vector<NumaNode> used;
    for (const NumaNode& node : nodes) {
        if (!node.cpus.empty()) used.push_back(node);
    }
    if (used.size() < 2 || static_cast<std::size_t>(threads) < used.size()) used = {NumaNode{0, {0}}};
    impl_ = std::make_unique<Impl>(static_cast<std::size_t>(threads), used);
    for (std::size_t worker = 0; worker < impl_->workers.size(); ++worker) {
        try {
            impl_->threads.emplace_back([impl = impl_.get(), worker] { impl->worker_loop(worker); });
        } catch (const std::exception& error) {  // a limit of the user or the cgroup on processes
            log::warn("{} threads asked for, going on with {}: {}", threads, size_, error.what());
            break;
        }
        ++size_;
    }
    impl_->crew = Crew(size_ - 1);
}

int ThreadPool::nodes() const noexcept { return static_cast<int>(impl_->nodes.size()); }

ThreadPool::~ThreadPool() {
    impl_->stopping = true;
    impl_->announce();
    for (std::thread& thread : impl_->threads) thread.join();
}

void ThreadPool::parallel_for(std::size_t tasks, FunctionRef<void(std::size_t, int)> body) {
    Crew& crew = impl_->crew;
    const int asked = crew.is_whole() ? crew.asked() : crew.asked(Crew::Clock::now());
    if (asked == 0 || tasks <= 1) {
        for (std::size_t task = 0; task < tasks; ++task) body(task, 0);
        return;
    }
    ++meetings_;
    const auto places = static_cast<std::uint32_t>(asked);
    impl_->body = &body;
    impl_->divide(tasks);
    impl_->finished.store(0, std::memory_order_relaxed);
    impl_->door.store(places, std::memory_order_release);
    impl_->announce();
    impl_->take_tasks(0, impl_->part_of_caller());
    const std::uint32_t left = impl_->door.fetch_or(Impl::closed, std::memory_order_acq_rel);
    if (const int stalled = impl_->wait_for(places - left); stalled != 0) {
        stalls_ += static_cast<std::uint64_t>(stalled);
        crew.lost(stalled, Crew::Clock::now());
    }
}

}  // namespace hetero
