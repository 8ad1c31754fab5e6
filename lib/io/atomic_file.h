// Outputs are complete or absent: written to a temporary in the same directory, synced, then renamed.
#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace hetero::io {

enum class Overwrite { refuse, replace };

// Whether `path` can be published later: its directory exists and can be written, it is absent or may be replaced, and
// what is there is a regular file. Call it before long work; publish() checks again.
Status check_output_path(const std::string& path, Overwrite overwrite);

class AtomicFile {
public:
    // Creates `<dir>/.<name>.<16 random hex digits>.part`, mode 0600 (umask can only narrow it). The name does not come
    // from the process id, so that writers in other PID namespaces or on other nodes do not meet.
    static Result<AtomicFile> create(const std::string& path, Overwrite overwrite);
    ~AtomicFile();  // removes the temporary unless published
    AtomicFile(AtomicFile&& other) noexcept;
    AtomicFile& operator=(AtomicFile&& other) noexcept;
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    [[nodiscard]] const std::string& temporary_path() const noexcept { return temporary_; }
    [[nodiscard]] int fd() const noexcept { return fd_; }

    Status write(std::span<const std::byte> bytes);  // appends; EINTR and short writes handled
    // fsync, rename over `path` (or link without replacing, with Overwrite::refuse), fsync of the directory.
    Status publish();

private:
    AtomicFile() = default;
    void discard() noexcept;
    std::string path_;
    std::string temporary_;
    Overwrite overwrite_ = Overwrite::refuse;
    int fd_ = -1;
};

// Removes the temporaries of all unpublished AtomicFiles of this process. Async-signal-safe, for signal handlers.
void remove_temporaries_on_signal() noexcept;

}  // namespace hetero::io
