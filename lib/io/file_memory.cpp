#include "io/file_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/errno_text.h"
#include "io/nameless_file.h"

namespace hetero::io {

Result<std::shared_ptr<std::byte>> take_file_memory(std::size_t bytes) {
    bytes = std::max<std::size_t>(bytes, 1);
    std::string reason;
    for (const std::string& folder : temporary_folders()) {
        const int fd = open_nameless(folder);
        if (fd < 0) {
            reason = fmt::format("{}: {}", folder, errno_text(errno));
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
        reason = fmt::format("{}: {}", folder, errno_text(error));
    }
    return fail(Errc::resource, "no room for {} bytes in a temporary file ({}); set TMPDIR", bytes, reason);
}

}  // namespace hetero::io
