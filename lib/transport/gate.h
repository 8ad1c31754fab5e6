// The lock between the thread that moves frames and the threads that read and write layers.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

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
    // Conditions are evaluated under the lock, after each changed().
    template <class Ready>
    void wait(Lock& lock, Ready ready) {
        changed_.wait(lock, ready);
    }
    template <class Ready>
    bool wait_for(Lock& lock, double seconds, Ready ready) {
        return changed_.wait_for(lock, std::chrono::duration<double>(seconds), ready);
    }
    void changed() { changed_.notify_all(); }

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
    Mutex mutex_;
    std::condition_variable_any changed_, rested_;
    bool nudged_ = false;
};

}  // namespace hetero::transport
