// Sequential write and read rate of a directory's disk, and of /dev/shm, past the page cache where the file system
// allows it.
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "base/clock.h"
#include "base/errno_text.h"
#include "hw/probes/probes.h"

namespace hetero::hw {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t block_bytes = 4U << 20;
constexpr std::uint64_t max_file_bytes = 256ULL << 20, max_quick_file_bytes = 16ULL << 20;

struct FileSystem {
    long magic;
    const char* name;
};
constexpr std::array file_systems{FileSystem{EXT4_SUPER_MAGIC, "ext"},
                                  FileSystem{XFS_SUPER_MAGIC, "xfs"},
                                  FileSystem{BTRFS_SUPER_MAGIC, "btrfs"},
                                  FileSystem{TMPFS_MAGIC, "tmpfs"},
                                  FileSystem{OVERLAYFS_SUPER_MAGIC, "overlay"},
                                  FileSystem{NFS_SUPER_MAGIC, "nfs"},
                                  FileSystem{FUSE_SUPER_MAGIC, "fuse"},
                                  FileSystem{RAMFS_MAGIC, "ramfs"},
                                  FileSystem{0x0BD00BD0, "lustre"},
                                  FileSystem{0x47504653, "gpfs"},
                                  FileSystem{0x2FC12FC1, "zfs"},
                                  FileSystem{F2FS_SUPER_MAGIC, "f2fs"},
                                  FileSystem{CEPH_SUPER_MAGIC, "ceph"}};

class File {
public:
    explicit File(int fd) : fd_(fd) {}
    ~File() {
        if (fd_ >= 0) ::close(fd_);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    [[nodiscard]] int fd() const { return fd_; }

private:
    int fd_;
};

// A file without a name: nothing is left behind, however the program ends. -1 and errno where there can be none.
int open_nameless(const std::string& folder, int extra_flags) {
    const int flags = O_RDWR | O_CLOEXEC | extra_flags;
    const int fd = ::open(folder.c_str(), flags | O_TMPFILE, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
    std::string name = folder + "/.hetero-probe-XXXXXX";  // file systems without O_TMPFILE: named for an instant
    const int named = ::mkostemp(name.data(), flags & ~O_RDWR);
    if (named >= 0) ::unlink(name.c_str());
    return named;
}

struct Rates {
    std::uint64_t bytes = 0;
    double write_s = 0, read_s = 0;
    int error = 0;
};

Rates measure(int fd, bool direct, std::byte* block, std::uint64_t limit_bytes, double budget_s) {
    Rates rates;
    const auto start = Clock::now();
    while (rates.bytes + block_bytes <= limit_bytes && (rates.bytes == 0 || seconds_since(start) < budget_s)) {
        const ssize_t n = ::pwrite(fd, block, block_bytes, static_cast<off_t>(rates.bytes));
        if (n != static_cast<ssize_t>(block_bytes)) {
            rates.error = n < 0 ? errno : ENOSPC;
            return rates;
        }
        rates.bytes += block_bytes;
    }
    if (::fsync(fd) != 0) {
        rates.error = errno;
        return rates;
    }
    rates.write_s = seconds_since(start);
    if (!direct) ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    const auto read_start = Clock::now();
    for (std::uint64_t at = 0; at < rates.bytes; at += block_bytes) {
        const ssize_t n = ::pread(fd, block, block_bytes, static_cast<off_t>(at));
        if (n != static_cast<ssize_t>(block_bytes)) {
            rates.error = n < 0 ? errno : EIO;
            return rates;
        }
    }
    rates.read_s = seconds_since(read_start);
    return rates;
}

void put_unknown_rates(Json& section, const std::string& reason) {
    for (const char* field : {"method", "file_bytes", "write_gb_per_s", "read_gb_per_s"})
        put_unknown(section, field, reason);
}

Json storage(const Context& context, const std::string& folder) {
    Json section;
    section["path"] = folder;
    struct statfs fs {};
    if (context.recorded() || ::statfs(folder.c_str(), &fs) != 0) {
        const std::string reason = context.recorded() ? not_recorded : errno_text(errno);
        for (const char* field : {"file_system", "total_bytes", "free_bytes"}) put_unknown(section, field, reason);
        put_unknown_rates(section, reason);
        return section;
    }
    std::optional<std::string> name;
    for (const FileSystem& known : file_systems) {
        if (known.magic == fs.f_type) name = known.name;
    }
    put(section, "file_system", name, fmt::format("file system type {:#x} has no name here", fs.f_type));
    const auto unit = static_cast<std::uint64_t>(fs.f_bsize);
    const std::uint64_t free_bytes = fs.f_bavail * unit;
    section["total_bytes"] = fs.f_blocks * unit;
    section["free_bytes"] = free_bytes;
    if (!context.options.measure) {
        put_unknown_rates(section, not_measured);
        return section;
    }

    const std::uint64_t limit_bytes =
        std::min(context.options.quick ? max_quick_file_bytes : max_file_bytes, free_bytes / 4);
    const std::unique_ptr<std::byte, decltype(&std::free)> block(
        static_cast<std::byte*>(std::aligned_alloc(4096, block_bytes)), &std::free);
    if (!block || limit_bytes < block_bytes) {
        put_unknown_rates(section, block ? "too little space is free" : "too little memory is available");
        return section;
    }
    std::mt19937_64 random(1);  // a disk or file system that compresses gains nothing
    for (std::size_t i = 0; i < block_bytes; i += 8) {
        const std::uint64_t word = random();
        std::memcpy(block.get() + i, &word, sizeof word);
    }
    bool direct = true;
    File file_direct(open_nameless(folder, O_DIRECT));
    if (file_direct.fd() < 0) direct = false;
    const File file_cached(direct ? -1 : open_nameless(folder, 0));
    const int fd = direct ? file_direct.fd() : file_cached.fd();
    if (fd < 0) {
        put_unknown_rates(section, errno_text(errno));
        return section;
    }
    const Rates rates = measure(fd, direct, block.get(), limit_bytes, context.options.seconds_each);
    if (rates.error != 0) {
        put_unknown_rates(section, errno_text(rates.error));
        return section;
    }
    section["method"] = direct ? "O_DIRECT, 4 MiB blocks, fsync at the end; read back with O_DIRECT"
                               : "page cache, 4 MiB blocks, fsync at the end; read back after POSIX_FADV_DONTNEED";
    section["file_bytes"] = rates.bytes;
    section["write_gb_per_s"] = rounded(static_cast<double>(rates.bytes) / rates.write_s / 1e9);
    section["read_gb_per_s"] = rounded(static_cast<double>(rates.bytes) / rates.read_s / 1e9);
    return section;
}

}  // namespace

Json probe_disk(const Context& context) { return storage(context, context.options.disk_path); }
Json probe_shm(const Context& context) { return storage(context, "/dev/shm"); }

}  // namespace hetero::hw
