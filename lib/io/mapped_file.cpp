#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/errno_text.h"

namespace hetero::io {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

// At a multiple of the size of huge pages; MAP_FAILED where it cannot be.
void* map_aligned(int fd, std::size_t size) {
    if (size > std::numeric_limits<std::size_t>::max() - huge_page) return MAP_FAILED;
    void* reserved = ::mmap(nullptr, size + huge_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return MAP_FAILED;
    const auto first = reinterpret_cast<std::uintptr_t>(reserved);
    const std::uintptr_t begin = (first + huge_page - 1) / huge_page * huge_page;
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const std::uintptr_t end = (begin + size + page - 1) / page * page;
    void* memory = ::mmap(reinterpret_cast<void*>(begin), size, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0);
    if (memory == MAP_FAILED) {
        ::munmap(reserved, size + huge_page);
        return MAP_FAILED;
    }
    if (begin > first) ::munmap(reserved, begin - first);
    const std::uintptr_t reserved_end = (first + size + huge_page + page - 1) / page * page;
    if (end < reserved_end) ::munmap(reinterpret_cast<void*>(end), reserved_end - end);
#ifdef MADV_HUGEPAGE
    (void)::madvise(memory, size, MADV_HUGEPAGE);  // a hint
#endif
    return memory;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path, Use use) {
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        const int error = errno;
        return fail(open_errc(error), "{}: cannot open: {}", path, errno_text(error));
    }
    struct Closer {
        int fd;
        ~Closer() { ::close(fd); }
    } closer{fd};

    struct stat info {};
    if (::fstat(fd, &info) != 0) return fail(Errc::resource, "{}: cannot read its size: {}", path, errno_text(errno));
    if (S_ISDIR(info.st_mode)) return fail(Errc::bad_input, "{}: is a directory, a file is needed", path);
    if (!S_ISREG(info.st_mode)) {
        return fail(Errc::bad_input, "{}: is not a regular file, so it cannot be mapped into memory", path);
    }
    MappedFile file;
    file.path_ = path;
    if (info.st_size == 0) return file;
    const auto size = static_cast<std::uintmax_t>(info.st_size);
    if (size > std::numeric_limits<std::size_t>::max())
        return fail(Errc::resource, "{}: too large for this machine", path);
    void* memory = use == Use::whole ? map_aligned(fd, static_cast<std::size_t>(size)) : MAP_FAILED;
    if (memory == MAP_FAILED) {
        memory = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_PRIVATE, fd, 0);
    }
    if (memory == MAP_FAILED) {
        return fail(Errc::resource, "{}: cannot map {} bytes: {}", path, size, errno_text(errno));
    }
    file.bytes_ = {static_cast<const std::byte*>(memory), static_cast<std::size_t>(size)};
    return file;
}

bool MappedFile::forget(std::span<const std::byte> part) const noexcept {
    const auto begin = reinterpret_cast<std::uintptr_t>(part.data()), end = begin + part.size();
    const auto first = reinterpret_cast<std::uintptr_t>(bytes_.data());
    if (begin < first || end > first + bytes_.size()) return false;
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const std::uintptr_t from = (begin + page - 1) / page * page, to = end / page * page;
    // The map is read-only, so nothing can be lost.
    if (from < to) ::madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
    return true;
}

MappedFile::~MappedFile() {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(path_, other.path_);
    return *this;
}

}  // namespace hetero::io
