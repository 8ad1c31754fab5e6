// Writes that another thread does, so that whoever makes the bytes need not wait for the system's copy of them, and the
// disk is at work before the file is whole: what has been written is given to it at once, not at the final fsync.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "base/result.h"

namespace hetero::io {

class WriteBehind {
public:
    static constexpr std::uint64_t most_bytes = 2U << 20;  // that wait; a larger write waits alone

    explicit WriteBehind(int fd) : fd_(fd) {}  // which stays the caller's
    ~WriteBehind();                            // what has not begun is dropped
    WriteBehind(const WriteBehind&) = delete;
    WriteBehind& operator=(const WriteBehind&) = delete;

    // `owner` is let go when the bytes are written, or are not going to be. Waits for room. The first write that failed
    // is the error of all later calls.
    Status write(std::uint64_t offset, std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
    Status drain();                           // all of it is written
    [[nodiscard]] std::uint64_t unsettled();  // writes that have not been done

private:
    struct Job {
        std::uint64_t offset;
        std::span<const std::byte> bytes;
        std::shared_ptr<const void> owner;
    };
    bool start();
    void run();

    const int fd_;
    std::thread thread_;
    bool refused_ = false;  // the system gives no thread

    std::mutex mutex_;
    std::condition_variable changed_;
    // Guarded by mutex_:
    std::deque<Job> jobs_;
    std::uint64_t waiting_bytes_ = 0, unsettled_ = 0;
    std::optional<Error> error_;
    bool stopping_ = false;
};

}  // namespace hetero::io
