// Outputs are complete or absent: written to a temporary in the same directory, synced, then renamed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace hetero::io {

enum class Overwrite { refuse, replace };

// Modes of new files: states hold prompts and are their owner's; weights are for all that umask lets read them.
constexpr unsigned private_file = 0600, shared_file = 0666;

// Whether `path` can be published later: its directory exists and a file can be created in it (one is, and is removed
// again), and `path` is absent, or a regular file that may be replaced. Call it before long work; publish() checks
// again. Errors: bad_input (exists, or is a directory, link, device or FIFO), resource (directory missing, read-only,
// full).
Status check_output_path(const std::string& path, Overwrite overwrite);

// Removes the temporaries of all unpublished AtomicFiles and AtomicFolders of this process. Async-signal-safe, for
// signal handlers.
void remove_temporaries_on_signal() noexcept;

struct Temporary;

class AtomicFile {
public:
    // Creates `<dir>/.<name>.<16 random hex digits>.part` of this mode (umask can only narrow it). The name does not
    // come from the process id, so that writers in other PID namespaces or on other nodes do not meet. Errors as for
    // check_output_path.
    // Messages name the file `shown`; by default its path.
    static Result<AtomicFile> create(const std::string& path, Overwrite overwrite, unsigned mode = private_file,
                                     const std::string& shown = {});
    ~AtomicFile();  // removes the temporary unless published or kept
    AtomicFile(AtomicFile&& other) noexcept;
    AtomicFile& operator=(AtomicFile&& other) noexcept;
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    [[nodiscard]] const std::string& temporary_path() const noexcept { return temporary_; }
    [[nodiscard]] int fd() const noexcept { return fd_; }

    // From now on the temporary stays where it is when this ends without publish(), by a signal too: a later attempt
    // makes use of it.
    void keep() noexcept;
    // After keep(): it is of no use after all.
    void remove() noexcept;

    // Appends. Where a file size limit is set, SIGXFSZ must be ignored to see the error.
    Status write(std::span<const std::byte> bytes);
    // Replaces bytes that were written before, for what is known only at the end.
    Status write_at(std::uint64_t offset, std::span<const std::byte> bytes);
    // fsync, then the temporary takes the name `path` in one step (with Overwrite::refuse only if nothing has it, not
    // even since create()), then fsync of the directory. Once only; where it fails, the temporary is gone and `path`
    // untouched, except that a failed fsync of the directory is reported after the name was given.
    Status publish();

private:
    AtomicFile() = default;
    Status give_name();
    void discard() noexcept;
    std::string path_;
    std::string shown_;
    std::string temporary_;
    Overwrite overwrite_ = Overwrite::refuse;
    int fd_ = -1;
    Temporary* registration_ = nullptr;
};

}  // namespace hetero::io
