// A whole file, read-only, in memory by mmap: pages are read when touched. A file that someone else cuts short while it
// is mapped ends the process with SIGBUS, as with every mmap; replace files by rename, as AtomicFile does.
#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace hetero::io {

class MappedFile {
public:
    MappedFile() = default;
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    enum class Use {
        parts,  // here and there
        whole   // all of it, again and again: in huge pages, where the system's page cache has them
    };
    // Regular files only; an empty file gives empty bytes. Errors: bad_input (missing, not a regular file), resource.
    static Result<MappedFile> open(const std::string& path, Use use = Use::parts);

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    // Gives back the memory of the whole pages within `part`, where it lies in bytes(); touched again, they are read
    // again. False where it does not lie there.
    bool forget(std::span<const std::byte> part) const noexcept;

private:
    std::span<const std::byte> bytes_;
    std::string path_;
};

}  // namespace hetero::io
