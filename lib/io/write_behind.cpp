#include "io/write_behind.h"

#include <fcntl.h>

#include <exception>
#include <new>
#include <utility>

#include "io/read_write.h"

namespace hetero::io {
namespace {

// Bytes of a file that the system is asked to start writing to the disk, together.
class DiskStart {
public:
    explicit DiskStart(int fd) : fd_(fd) {}
    void add(std::uint64_t offset, std::uint64_t bytes) {
        const std::uint64_t end = offset + bytes;
        if (begin_ == end_) begin_ = end_ = offset;
        if (offset < begin_) begin_ = offset;
        if (end > end_) end_ = end;
        if (end_ - begin_ < least_bytes) return;
#ifdef __linux__
        // Only a hint: the final fsync is what reports.
        static_cast<void>(::sync_file_range(fd_, static_cast<off_t>(begin_), static_cast<off_t>(end_ - begin_),
                                            SYNC_FILE_RANGE_WRITE));
#endif
        begin_ = end_;
    }

private:
    static constexpr std::uint64_t least_bytes = 8U << 20;
    int fd_;
    std::uint64_t begin_ = 0, end_ = 0;
};

}  // namespace

WriteBehind::~WriteBehind() {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

bool WriteBehind::start() {
    if (thread_.joinable()) return true;
    if (refused_) return false;
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::exception&) {
        refused_ = true;
    }
    return !refused_;
}

Status WriteBehind::write(std::uint64_t offset, std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
    if (!start()) {
        if (!error_)
            if (const Status done = write_fully(fd_, offset, bytes); !done) error_ = done.error();
        if (error_) return tl::unexpected(*error_);
        return {};
    }
    {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return error_ || jobs_.empty() || waiting_bytes_ + bytes.size() <= most_bytes; });
        if (error_) return tl::unexpected(*error_);
        jobs_.push_back({offset, bytes, std::move(owner)});
        waiting_bytes_ += bytes.size();
        ++unsettled_;
    }
    changed_.notify_all();
    return {};
}

Status WriteBehind::drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.empty(); });
    if (error_) return tl::unexpected(*error_);
    return {};
}

std::uint64_t WriteBehind::unsettled() {
    const std::lock_guard lock(mutex_);
    return unsettled_;
}

void WriteBehind::run() {
    DiskStart disk(fd_);
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (stopping_) return;
        Job& job = jobs_.front();  // stays the front, and where it is, until it is taken off here
        const bool lost = error_.has_value();
        lock.unlock();
        Status done;
        try {
            if (!lost) done = write_fully(fd_, job.offset, job.bytes);
        } catch (const std::bad_alloc&) {
            done = tl::unexpected(Error{Errc::resource, "out of memory"});
        }
        if (!lost && done) disk.add(job.offset, job.bytes.size());
        job.owner.reset();
        lock.lock();
        waiting_bytes_ -= job.bytes.size();
        jobs_.pop_front();
        const bool wrote = done.has_value();
        if (!wrote) error_ = std::move(done).error();
        if (!lost && wrote) --unsettled_;
        changed_.notify_all();
    }
}

}  // namespace hetero::io
