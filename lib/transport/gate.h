// The lock between the thread that moves frames and the threads that read and write layers.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hetero::transport {

class Gate {
public:
    using Clock = std::chrono::steady_clock;
    // The moving thread locks again and again; it lets the others go first.
    class Mutex {
    public:
        void lock() {
            waiting_.fetch_add(1);
            mutex_.lock();
            waiting_.fetch_sub(1);
        }
        void unlock() { mutex_.unlock(); }
        [[nodiscard]] bool wanted() const noexcept { return waiting_.load() > 0; }
        void lock_last() {
            for (int i = 0; i < 1000 && waiting_.load() > 0; ++i) std::this_thread::yield();
            mutex_.lock();
        }

    private:
        std::mutex mutex_;
        std::atomic<int> waiting_ = 0;
    };
    using Lock = std::unique_lock<Mutex>;

    [[nodiscard]] Lock enter() { return Lock(mutex_); }
    [[nodiscard]] Lock enter_last() {
        mutex_.lock_last();
        return Lock(mutex_, std::adopt_lock);
    }
    // Conditions are evaluated under the lock, by the thread that calls changed(): the one that waits is woken when its
    // own is met, not by every frame.
    template <class Ready>
    void wait(Lock& lock, Ready ready) {
        if (step_ && help(lock, ready)) return;
        wait_idly(lock, ready);
    }
    template <class Ready>
    void wait_idly(Lock& lock, Ready ready) {
        if (ready()) return;
        Waiter waiter(waiters_, ready);
        do {
            waiter.met = false;
            waiter.woken.wait(lock, [&] { return waiter.met; });
        } while (!ready());
    }
    template <class Ready>
    bool wait_for(Lock& lock, double seconds, Ready ready) {
        if (ready()) return true;
        Waiter waiter(waiters_, ready);
        waiter.woken.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return waiter.met; });
        return ready();
    }
    // Under the lock.
    void changed() {
        for (Waiter* waiter : waiters_) {
            if (waiter->met || !waiter->ready()) continue;
            waiter->met = true;
            waiter->woken.notify_one();
        }
    }

    // What moves frames, if other threads may do so under the lock: then one that waits moves them itself, and one that
    // has something to send sends it. Handing over to the moving thread takes longer, and a core.
    void let_step(std::function<bool(Clock::time_point)> step) { step_ = std::move(step); }
    // Somebody else has moved frames since, and is likely to do so again. Needs no lock.
    [[nodiscard]] bool stepped_since(Clock::time_point time) const noexcept { return stepped_at_.load() > time; }
    // Whoever moves frames under the lock, and last saw one move so long ago, does so again at once: the answer to a
    // small frame is there sooner than a thread is that was let go first.
    [[nodiscard]] bool goes_on(Clock::duration since_moved) const noexcept {
        constexpr auto soon = std::chrono::microseconds(20);
        return since_moved < soon && !mutex_.wanted();
    }

    // There is something to send: sends it, or wakes the moving thread. Call under the lock.
    void nudge() {
        if (step_) {
            step();
            return;
        }
        wake();
    }
    // For a thread that does something long in pieces, between them.
    void keep_moving() {
        if (!step_) return;
        const Lock lock = enter();
        step();
    }
    void wake() {
        nudged_ = true;
        rested_.notify_all();
    }
    // The moving thread: waits until nudged, at most so long.
    void rest(Lock& lock, double seconds) {
        rested_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return nudged_; });
        nudged_ = false;
    }

private:
    // Until ready (true), or until nothing has moved for a while.
    template <class Ready>
    bool help(Lock& lock, Ready& ready) {
        constexpr auto patience = std::chrono::milliseconds(1);
        Clock::time_point moved = Clock::now();
        for (;;) {
            if (ready()) return true;
            const bool any = step();
            const Clock::time_point now = stepped_at_.load();
            if (any) moved = now;
            if (now - moved > patience) return false;
            if (goes_on(now - moved)) continue;
            lock.unlock();
            std::this_thread::yield();
            lock.lock();
        }
    }
    bool step() {
        const bool moved = step_(Clock::now());
        stepped_at_.store(Clock::now());  // a step may have been a long copy
        return moved;
    }
    struct Waiter {
        template <class Ready>
        Waiter(std::vector<Waiter*>& all, Ready& condition) : ready(std::ref(condition)), waiters(&all) {
            all.push_back(this);
        }
        ~Waiter() { std::erase(*waiters, this); }
        Waiter(const Waiter&) = delete;
        Waiter& operator=(const Waiter&) = delete;
        std::function<bool()> ready;
        bool met = false;
        std::condition_variable_any woken;
        std::vector<Waiter*>* waiters;
    };
    Mutex mutex_;
    std::condition_variable_any rested_;
    std::vector<Waiter*> waiters_;
    std::function<bool(Clock::time_point)> step_;
    std::atomic<Clock::time_point> stepped_at_{Clock::time_point{}};
    bool nudged_ = false;
};

}  // namespace hetero::transport
