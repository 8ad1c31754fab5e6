#include "io/temporaries.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/errno_text.h"

namespace hetero::io {

namespace {

std::atomic<Temporary*> head{nullptr};
static_assert(std::atomic<char*>::is_always_lock_free, "a signal handler exchanges these pointers");

// Random, as names must differ between processes that share nothing but the directory: chance decides, not clock or
// process id.
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

void remove_from_disk(const char* path, bool is_folder) noexcept { is_folder ? ::rmdir(path) : ::unlink(path); }

}  // namespace

Temporary* Temporary::take(const std::string& temporary, bool is_folder) {
    Temporary* entry = head.load();
    while (entry != nullptr && entry->in_use.exchange(true)) entry = entry->next;
    if (entry == nullptr) {
        entry = new Temporary;
        entry->next = head.load();
        while (!head.compare_exchange_weak(entry->next, entry)) {
        }
    }
    char* copy = new char[temporary.size() + 1];
    std::memcpy(copy, temporary.c_str(), temporary.size() + 1);
    entry->is_folder.store(is_folder);
    entry->path.store(copy);
    return entry;
}

void Temporary::release(bool remove) noexcept {
    if (char* temporary = path.exchange(nullptr); temporary != nullptr) {
        if (remove) remove_from_disk(temporary, is_folder.load());
        delete[] temporary;
    }
    delete[] removed.exchange(nullptr);
    in_use.store(false);
}

void remove_temporaries_on_signal() noexcept {
    const int saved_errno = errno;
    for (const bool folders : {false, true}) {  // a folder is empty only when its files are gone
        for (auto* entry = head.load(); entry != nullptr; entry = entry->next) {
            if (entry->is_folder.load() != folders) continue;
            if (char* temporary = entry->path.exchange(nullptr); temporary != nullptr) {
                remove_from_disk(temporary, folders);
                entry->removed.store(temporary);
            }
        }
    }
    errno = saved_errno;
}

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

std::string temporary_prefix(const SplitPath& target) {
    constexpr std::size_t longest = 220;  // with what is added, below the 255 bytes of a file name
    return fmt::format(".{}.", target.name.substr(0, longest));
}

std::string temporary_name(const SplitPath& target) {
    return fmt::format("{}/{}{:016x}.part", target.folder, temporary_prefix(target), random_number());
}

tl::unexpected<Error> cannot_write(const std::string& path, const SplitPath& target, int error) {
    struct stat info {};
    if ((error == ENOENT || error == ENOTDIR) && ::stat(target.folder.c_str(), &info) != 0) {
        return fail(Errc::resource, "{}: cannot be written: there is no directory {}", path, target.folder);
    }
    return fail(Errc::resource, "{}: cannot be written: {}", path, errno_text(error));
}

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

}  // namespace hetero::io
