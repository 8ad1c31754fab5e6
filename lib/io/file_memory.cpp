#include "io/file_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace hetero::io {
namespace {

// Unlinked; -1: errno.
int open_nameless(const std::string& folder) {
    const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    std::string name = folder + "/.hetero-memory-XXXXXX";  // file systems without O_TMPFILE: named for an instant
    const int named = ::mkostemp(name.data(), O_CLOEXEC);
    if (named >= 0) ::unlink(name.c_str());
    return named;
}

}  // namespace

Result<std::shared_ptr<std::byte>> take_file_memory(std::size_t bytes) {
    bytes = std::max<std::size_t>(bytes, 1);
    std::vector<std::string> folders;
    if (const char* folder = std::getenv("TMPDIR"); folder != nullptr && *folder != '\0') folders.emplace_back(folder);
    folders.insert(folders.end(), {"/var/tmp", "/tmp"});
    std::string reason;
    for (const std::string& folder : folders) {
        const int fd = open_nameless(folder);
        if (fd < 0) {
            reason = folder + ": " + std::strerror(errno);
            continue;
        }
        void* memory = MAP_FAILED;
        int error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
        if (error == 0) {
            memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            error = memory == MAP_FAILED ? errno : 0;
        }
        ::close(fd);
        if (error == 0) {
            const auto release = [bytes](std::byte* mapped) { ::munmap(mapped, bytes); };
            return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), release);
        }
        reason = folder + ": " + std::strerror(error);
    }
    return fail(Errc::resource, "no room for {} bytes in a temporary file ({}); set TMPDIR", bytes, reason);
}

}  // namespace hetero::io
