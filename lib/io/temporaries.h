// What AtomicFile and AtomicFolder share: temporaries that a signal handler can remove, and names.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "io/atomic_file.h"

namespace hetero::io {

// One temporary, a file or a folder. Whoever exchanges `path` for null removes it: its owner or a signal handler. A
// handler may not free memory, so it hands the text back in `removed`. Registrations are reused and never freed, so
// that a handler may walk their list at any moment.
struct Temporary {
    std::atomic<char*> path{nullptr};
    std::atomic<char*> removed{nullptr};
    std::atomic<bool> in_use{true};
    std::atomic<bool> is_folder{false};
    Temporary* next = nullptr;

    static Temporary* take(const std::string& path, bool is_folder);
    void release(bool remove) noexcept;  // `remove`: from the disk too, a folder if it is empty
};

struct SplitPath {
    std::string folder;  // as given, "." where there is none
    std::string name;
};
Result<SplitPath> split_path(const std::string& path);

// "<folder>/.<name>.<16 random hex digits>.part", and how the names of all temporaries of `target` begin in its folder.
[[nodiscard]] std::string temporary_name(const SplitPath& target);
[[nodiscard]] std::string temporary_prefix(const SplitPath& target);  // ".<name>."

// The error for a temporary of `path` that could not be made.
[[nodiscard]] tl::unexpected<Error> cannot_write(const std::string& path, const SplitPath& target, int error);

// renameat2 where the file system has RENAME_NOREPLACE, else by other means; fails with EEXIST where `to` exists.
// For files. Returns 0 or errno.
int rename_without_replacing(const char* from, const char* to);

// fsync of a directory; `path` is for the message.
Status sync_folder(const std::string& folder, const std::string& path);

}  // namespace hetero::io
