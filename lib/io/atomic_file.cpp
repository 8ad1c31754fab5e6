#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/errno_text.h"

namespace hetero::io {

// One temporary. Whoever exchanges `path` for null removes the file: its AtomicFile or a signal handler. A handler may
// not free memory, so it hands the text back in `removed`. Registrations are reused and never freed, so that a handler
// may walk their list at any moment.
struct AtomicFile::Registration {
    std::atomic<char*> path{nullptr};
    std::atomic<char*> removed{nullptr};
    std::atomic<bool> in_use{true};
    Registration* next = nullptr;

    static std::atomic<Registration*> head;
    static Registration* take(const std::string& temporary);
    void release(bool remove) noexcept;
};

std::atomic<AtomicFile::Registration*> AtomicFile::Registration::head{nullptr};
static_assert(std::atomic<char*>::is_always_lock_free, "a signal handler exchanges these pointers");

AtomicFile::Registration* AtomicFile::Registration::take(const std::string& temporary) {
    Registration* entry = head.load();
    while (entry != nullptr && entry->in_use.exchange(true)) entry = entry->next;
    if (entry == nullptr) {
        entry = new Registration;
        entry->next = head.load();
        while (!head.compare_exchange_weak(entry->next, entry)) {
        }
    }
    char* copy = new char[temporary.size() + 1];
    std::memcpy(copy, temporary.c_str(), temporary.size() + 1);
    entry->path.store(copy);
    return entry;
}

void AtomicFile::Registration::release(bool remove) noexcept {
    if (char* temporary = path.exchange(nullptr); temporary != nullptr) {
        if (remove) ::unlink(temporary);
        delete[] temporary;
    }
    delete[] removed.exchange(nullptr);
    in_use.store(false);
}

void remove_temporaries_on_signal() noexcept {
    const int saved_errno = errno;
    for (auto* entry = AtomicFile::Registration::head.load(); entry != nullptr; entry = entry->next) {
        if (char* temporary = entry->path.exchange(nullptr); temporary != nullptr) {
            ::unlink(temporary);
            entry->removed.store(temporary);
        }
    }
    errno = saved_errno;
}

namespace {

struct SplitPath {
    std::string folder;  // as given, "." where there is none
    std::string name;
};

Result<SplitPath> split_path(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    SplitPath split;
    split.folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
    split.name = slash == std::string::npos ? path : path.substr(slash + 1);
    if (split.name.empty() || split.name == "." || split.name == ".." || path.find('\0') != std::string::npos) {
        return fail(Errc::bad_input, "'{}' does not name a file to write", path);
    }
    return split;
}

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

// Names must differ between processes that share nothing but the directory: chance decides, not clock or process id.
std::uint64_t random_number() {
    std::uint64_t number = 0;
    if (::getrandom(&number, sizeof number, 0) == static_cast<ssize_t>(sizeof number)) return number;
    const int fd = ::open("/dev/urandom", O_RDONLY | O_CLOEXEC);  // kernels and sandboxes without getrandom
    if (fd >= 0) {
        if (::read(fd, &number, sizeof number) != static_cast<ssize_t>(sizeof number)) number = 0;
        ::close(fd);
    }
    return number;
}

std::string temporary_name(const SplitPath& target) {
    constexpr std::size_t longest = 220;  // with what is added, below the 255 bytes of a file name
    return fmt::format("{}/.{}.{:016x}.part", target.folder, target.name.substr(0, longest), random_number());
}

// renameat2 where the file system has RENAME_NOREPLACE, else a second name by link(): both fail where `to` exists.
int rename_without_replacing(const char* from, const char* to) {
    if (::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return errno;
    if (::link(from, to) != 0) return errno;
    ::unlink(from);
    return 0;
}

Status sync_folder(const std::string& folder, const std::string& path) {
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return {};  // a folder that can be written but not read: there is no way to sync it
    const int error = ::fsync(fd) == 0 ? 0 : errno;
    ::close(fd);
    if (error == 0 || error == EINVAL || error == ENOTSUP) return {};  // file systems that do not sync directories
    return fail(Errc::resource, "{}: was written, but may not survive a crash: syncing its directory failed: {}", path,
                errno_text(error));
}

}  // namespace

Status check_output_path(const std::string& path, Overwrite overwrite) {
    // Permission bits do not tell all (read-only mounts, quotas, root on NFS): only creating a file does.
    HETERO_CHECK(AtomicFile::create(path, overwrite));
    return {};
}

Result<AtomicFile> AtomicFile::create(const std::string& path, Overwrite overwrite) {
    HETERO_TRY(const SplitPath target, split_path(path));
    HETERO_CHECK(check_target(path, overwrite));
    AtomicFile file;
    file.path_ = path;
    file.overwrite_ = overwrite;
    constexpr int attempts = 16;
    int error = EEXIST;
    for (int i = 0; i < attempts && error == EEXIST; ++i) {
        file.temporary_ = temporary_name(target);
        file.registration_ = Registration::take(file.temporary_);  // first, so that no signal finds the file unknown
        file.fd_ = ::open(file.temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (file.fd_ >= 0) return file;
        error = errno;
        std::exchange(file.registration_, nullptr)->release(false);
    }
    file.temporary_.clear();
    struct stat info {};
    if ((error == ENOENT || error == ENOTDIR) && ::stat(target.folder.c_str(), &info) != 0) {
        return fail(Errc::resource, "{}: cannot be written: there is no directory {}", path, target.folder);
    }
    return fail(Errc::resource, "{}: cannot be written: {}", path, errno_text(error));
}

AtomicFile::~AtomicFile() { discard(); }

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      overwrite_(other.overwrite_),
      fd_(std::exchange(other.fd_, -1)),
      registration_(std::exchange(other.registration_, nullptr)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
    if (this == &other) return *this;
    discard();
    path_ = std::move(other.path_);
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

Status AtomicFile::write(std::span<const std::byte> bytes) {
    if (fd_ < 0) return fail(Errc::internal, "{}: written after it was published", path_);
    constexpr std::size_t piece = 1U << 30;  // Linux writes at most 2 GiB at once
    while (!bytes.empty()) {
        const ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), piece));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(Errc::resource, "{}: cannot be written: {}", path_, errno_text(errno));
        bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return {};
}

Status AtomicFile::give_name() {
    // Also flushes what was written through other descriptors. After a failure nothing is known of the data, so that a
    // second fsync would prove nothing.
    if (::fsync(fd_) != 0) return fail(Errc::resource, "{}: cannot be written: {}", path_, errno_text(errno));
    if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
        return fail(Errc::resource, "{}: cannot be written: {}", path_, errno_text(errno));
    }
    HETERO_CHECK(check_target(path_, overwrite_));
    const int error = overwrite_ == Overwrite::refuse ? rename_without_replacing(temporary_.c_str(), path_.c_str())
                      : ::rename(temporary_.c_str(), path_.c_str()) == 0 ? 0
                                                                         : errno;
    if (error == EEXIST) {
        return fail(Errc::bad_input,
                    "{}: appeared while this output was being made, and is not overwritten (--force does)", path_);
    }
    if (error != 0) return fail(Errc::resource, "{}: cannot be given its name: {}", path_, errno_text(error));
    return {};
}

Status AtomicFile::publish() {
    if (fd_ < 0) return fail(Errc::internal, "{}: published twice", path_);
    if (Status named = give_name(); !named) {
        discard();
        return named;
    }
    std::exchange(registration_, nullptr)->release(false);
    HETERO_TRY(const SplitPath target, split_path(path_));
    return sync_folder(target.folder, path_);
}

}  // namespace hetero::io
