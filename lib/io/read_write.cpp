#include "io/read_write.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/errno_text.h"

namespace hetero::io {
namespace {

constexpr std::size_t most_bytes = std::size_t{1} << 30;  // Linux moves at most 2 GiB at once

// Calls move(place in `bytes`, count) until all are moved or it moves none; the number moved, or -1: errno.
template <class Move>
ssize_t move_all(std::size_t bytes, Move move) {
    std::size_t done = 0;
    while (done < bytes) {
        const ssize_t n = move(done, std::min(bytes - done, most_bytes));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        done += static_cast<std::size_t>(n);
    }
    return static_cast<ssize_t>(done);
}

Status written(ssize_t done, std::size_t bytes) {
    if (done == static_cast<ssize_t>(bytes)) return {};
    return fail(Errc::resource, "cannot be written: {}", errno_text(done < 0 ? errno : EIO));
}

}  // namespace

Result<std::size_t> read_up_to_end(int fd, std::uint64_t offset, std::span<std::byte> out) {
    if (offset > std::uint64_t{INT64_MAX} - out.size())
        return fail(Errc::bad_input, "offset {} is beyond any file", offset);
    const ssize_t done = move_all(out.size(), [&](std::size_t at, std::size_t n) {
        return ::pread(fd, out.data() + at, n, static_cast<off_t>(offset + at));
    });
    if (done < 0) return fail(Errc::resource, "cannot be read: {}", errno_text(errno));
    return static_cast<std::size_t>(done);
}

Status read_fully(int fd, std::uint64_t offset, std::span<std::byte> out) {
    HETERO_TRY(const std::size_t done, read_up_to_end(fd, offset, out));
    if (done == out.size()) return {};
    return fail(Errc::bad_input, "ends at byte {}, {} more were expected", offset + done, out.size() - done);
}

Status write_fully(int fd, std::uint64_t offset, std::span<const std::byte> bytes) {
    const ssize_t done = move_all(bytes.size(), [&](std::size_t at, std::size_t n) {
        return ::pwrite(fd, bytes.data() + at, n, static_cast<off_t>(offset + at));
    });
    return written(done, bytes.size());
}

Status write_fully(int fd, std::span<const std::byte> bytes) {
    const ssize_t done =
        move_all(bytes.size(), [&](std::size_t at, std::size_t n) { return ::write(fd, bytes.data() + at, n); });
    return written(done, bytes.size());
}

}  // namespace hetero::io
