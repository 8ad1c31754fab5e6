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
    // The moving thread locks again and again; it lets the others go first.
    class Mutex {
    public:
        void lock() {
            waiting_.fetch_add(1);
            mutex_.lock();
            waiting_.fetch_sub(1);
        }
        void unlock() { mutex_.unlock(); }
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

    // There is something to send: wakes the moving thread. Call under the lock.
    void nudge() {
        nudged_ = true;
        rested_.notify_all();
    }
    // The moving thread: waits until nudged, at most so long.
    void rest(Lock& lock, double seconds) {
        rested_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return nudged_; });
        nudged_ = false;
    }

private:
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
    bool nudged_ = false;
};

}  // namespace hetero::transport
