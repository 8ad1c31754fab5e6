#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "base/errno_text.h"
#include "io/read_write.h"
#include "io/temporaries.h"

namespace hetero::io {
namespace {

// What stands at `path` may be replaced, or nothing does.
Status check_target(const std::string& path, Overwrite overwrite) {
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) {
        const int error = errno;
        if (error == ENOENT) return {};
        return fail(Errc::resource, "{}: cannot be written: {}", path, errno_text(error));
    }
    if (S_ISDIR(info.st_mode)) return fail(Errc::bad_input, "{}: is a directory, the name of a file is needed", path);
    if (S_ISLNK(info.st_mode)) {
        return fail(Errc::bad_input,
                    "{}: is a symbolic link and would be replaced by a file; name the file it points to", path);
    }
    if (!S_ISREG(info.st_mode))
        return fail(Errc::bad_input, "{}: is not a regular file (a device, FIFO or socket) and is not replaced", path);
    if (overwrite == Overwrite::refuse)
        return fail(Errc::bad_input, "{}: exists already and is not overwritten (--force does)", path);
    return {};
}

}  // namespace

Status check_output_path(const std::string& path, Overwrite overwrite) {
    // Permission bits do not tell all (read-only mounts, quotas, root on NFS): only creating a file does.
    HETERO_CHECK(AtomicFile::create(path, overwrite));
    return {};
}

Result<AtomicFile> AtomicFile::create(const std::string& path, Overwrite overwrite, unsigned mode,
                                      const std::string& shown) {
    HETERO_TRY(const SplitPath target, split_path(path));
    HETERO_CHECK(check_target(path, overwrite));
    AtomicFile file;
    file.path_ = path;
    file.shown_ = shown.empty() ? path : shown;
    file.overwrite_ = overwrite;
    constexpr int attempts = 16;
    int error = EEXIST;
    for (int i = 0; i < attempts && error == EEXIST; ++i) {
        file.temporary_ = temporary_name(target);
        file.registration_ =
            Temporary::take(file.temporary_, false);  // first, so that no signal finds the file unknown
        file.fd_ = ::open(file.temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
        if (file.fd_ >= 0) return file;
        error = errno;
        std::exchange(file.registration_, nullptr)->release(false);
    }
    file.temporary_.clear();
    return cannot_write(file.shown_, target, error);
}

AtomicFile::~AtomicFile() { discard(); }

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      shown_(std::move(other.shown_)),
      temporary_(std::move(other.temporary_)),
      overwrite_(other.overwrite_),
      fd_(std::exchange(other.fd_, -1)),
      registration_(std::exchange(other.registration_, nullptr)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
    if (this == &other) return *this;
    discard();
    path_ = std::move(other.path_);
    shown_ = std::move(other.shown_);
    temporary_ = std::move(other.temporary_);
    overwrite_ = other.overwrite_;
    fd_ = std::exchange(other.fd_, -1);
    registration_ = std::exchange(other.registration_, nullptr);
    return *this;
}

void AtomicFile::discard() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    if (registration_ != nullptr) std::exchange(registration_, nullptr)->release(true);
}

void AtomicFile::keep() noexcept {
    if (registration_ != nullptr) std::exchange(registration_, nullptr)->release(false);
}

void AtomicFile::remove() noexcept {
    if (fd_ >= 0) ::unlink(temporary_.c_str());
    discard();
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
    if (fd_ < 0) return fail(Errc::internal, "{}: written after it was published", shown_);
    if (const Status done = write_fully(fd_, bytes); !done) return fail_with(done.error(), shown_);
    return {};
}

Status AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
    if (fd_ < 0) return fail(Errc::internal, "{}: written after it was published", shown_);
    if (const Status done = write_fully(fd_, offset, bytes); !done) return fail_with(done.error(), shown_);
    return {};
}

Status AtomicFile::give_name() {
    // Also flushes what was written through other descriptors. After a failure nothing is known of the data, so that a
    // second fsync would prove nothing.
    if (::fsync(fd_) != 0) return fail(Errc::resource, "{}: cannot be written: {}", shown_, errno_text(errno));
    if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
        return fail(Errc::resource, "{}: cannot be written: {}", shown_, errno_text(errno));
    }
    HETERO_CHECK(check_target(path_, overwrite_));
    const int error = overwrite_ == Overwrite::refuse ? rename_without_replacing(temporary_.c_str(), path_.c_str())
                      : ::rename(temporary_.c_str(), path_.c_str()) == 0 ? 0
                                                                         : errno;
    if (error == EEXIST) {
        return fail(Errc::bad_input,
                    "{}: appeared while this output was being made, and is not overwritten (--force does)", shown_);
    }
    if (error != 0) return fail(Errc::resource, "{}: cannot be given its name: {}", shown_, errno_text(error));
    return {};
}

Status AtomicFile::publish() {
    if (fd_ < 0) return fail(Errc::internal, "{}: published twice", shown_);
    if (Status named = give_name(); !named) {
        if (registration_ == nullptr) ::unlink(temporary_.c_str());
        discard();
        return named;
    }
    keep();
    HETERO_TRY(const SplitPath target, split_path(path_));
    return sync_folder(target.folder, shown_);
}

}  // namespace hetero::io
