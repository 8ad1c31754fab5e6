#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>

#include "base/errno_text.h"
#include "io/hdf5.h"
#include "io/read_write.h"
#include "io/write_behind.h"

namespace hetero::io {
namespace {

// Metadata are read a few bytes at a time, the same blocks again and again: copies of the last blocks answer most of
// it.
class BlockCache {
public:
    static constexpr std::size_t block_bytes = std::size_t{16} << 10, most_bytes = std::size_t{4} << 10;

    // `out`, at most most_bytes, from the copy of the block that it lies in, which `read` makes where there is none;
    // false where it is not to be had so.
    template <class Read>
    bool get(std::uint64_t offset, std::span<std::byte> out, std::uint64_t file_bytes, const Read& read) {
        const std::uint64_t block = offset / block_bytes, begin = block * block_bytes, at = offset - begin;
        if (begin >= file_bytes) return false;
        const std::uint64_t there = std::min<std::uint64_t>(block_bytes, file_bytes - begin);
        if (at > there || out.size() > there - at) return false;
        Slot& slot = slots_[block % slots_.size()];
        if (slot.block != block) {
            slot.block = none;
            if (!read(begin, std::span(slot.bytes).first(there))) return false;
            slot.block = block;
        }
        std::memcpy(out.data(), slot.bytes.data() + at, out.size());
        return true;
    }

private:
    static constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();
    struct Slot {
        std::uint64_t block = none;
        std::array<std::byte, block_bytes> bytes;
    };
    std::array<Slot, 16> slots_;
};

class FileStore final : public ByteStore {
public:
    FileStore(int fd, std::uint64_t size, bool writable) : fd_(fd), size_(size), writable_(writable) {}
    ~FileStore() override {
        behind_.reset();
        ::close(fd_);
    }
    FileStore(const FileStore&) = delete;
    FileStore& operator=(const FileStore&) = delete;

    [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }

    Status read_at(std::uint64_t offset, std::span<std::byte> out) override {
        const auto read = [this](std::uint64_t at, std::span<std::byte> block) { return read_file(at, block); };
        if (!writable_ && !out.empty() && out.size() <= BlockCache::most_bytes) {
            const std::lock_guard lock(cache_mutex_);
            if (cache_.get(offset, out, size_, read)) return {};
        }
        return read_file(offset, out);
    }

    Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
        HETERO_CHECK(write_fully(fd_, offset, bytes));
        size_ = std::max(size_, offset + bytes.size());
        return {};
    }

    Status write_later(std::uint64_t offset, std::span<const std::byte> bytes,
                       std::shared_ptr<const void> owner) override {
        HETERO_CHECK(behind_->write(offset, bytes, std::move(owner)));
        size_ = std::max(size_, offset + bytes.size());
        return {};
    }
    [[nodiscard]] std::uint64_t unsettled() override { return behind_->unsettled(); }
    Status settle() override { return behind_->drain(); }

    Status resize(std::uint64_t bytes) override {
        while (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) {
            if (errno != EINTR) return fail(Errc::resource, "cannot set the size: {}", errno_text(errno));
        }
        size_ = bytes;
        return {};
    }

private:
    [[nodiscard]] Status read_file(std::uint64_t offset, std::span<std::byte> out) const {
        if (!writable_) return read_fully(fd_, offset, out);
        HETERO_TRY(const std::size_t there, read_up_to_end(fd_, offset, out));
        std::fill(out.begin() + static_cast<std::ptrdiff_t>(there), out.end(), std::byte{0});  // as the driver does
        return {};
    }

    int fd_;
    std::uint64_t size_;
    bool writable_;
    std::mutex cache_mutex_;
    BlockCache cache_;
    std::optional<WriteBehind> behind_{std::in_place, fd_};
};

Result<std::unique_ptr<ByteStore>> open_store(const std::string& path, int flags) {
    int fd = -1;
    do {
        fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not block here
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        const int error = errno;
        return fail(flags == O_RDONLY ? open_errc(error) : Errc::resource, "cannot open: {}", errno_text(error));
    }
    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        ::close(fd);
        return fail(Errc::bad_input, "not a regular file");
    }
    return std::make_unique<FileStore>(fd, static_cast<std::uint64_t>(info.st_size), flags != O_RDONLY);
}

}  // namespace

Result<std::unique_ptr<ByteStore>> open_file_store(const std::string& path) { return open_store(path, O_RDONLY); }

Result<std::unique_ptr<ByteStore>> open_writable_file_store(const std::string& path) {
    return open_store(path, O_RDWR);
}

Status MemoryStore::read_at(std::uint64_t offset, std::span<std::byte> out) {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset)
        return fail(Errc::bad_input, "ends at byte {}, bytes up to {} were expected", bytes_.size(),
                    offset + out.size());
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return {};
}

Status MemoryStore::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
    if (bytes.empty()) return {};
    if (offset > std::numeric_limits<std::uint64_t>::max() - bytes.size())
        return fail(Errc::internal, "write at {} overflows", offset);
    if (offset + bytes.size() > bytes_.size()) HETERO_CHECK(resize(offset + bytes.size()));
    std::memcpy(bytes_.data() + offset, bytes.data(), bytes.size());
    return {};
}

Status MemoryStore::resize(std::uint64_t bytes) {
    try {
        bytes_.resize(bytes);
    } catch (const std::exception&) {
        return fail(Errc::resource, "not enough memory for an image of {} bytes", bytes);
    }
    return {};
}

void MemoryStore::expect(std::uint64_t bytes) noexcept {
    try {
        bytes_.reserve(bytes);
    } catch (const std::exception&) {  // then it grows as it goes, and the write that has no room says so
    }
}

}  // namespace hetero::io
