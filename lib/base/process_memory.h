// What this process holds of the machine's memory, in bytes; 0 where the system does not tell.
#pragma once
#include <cstdint>

namespace hetero {

struct ProcessMemory {
    std::uint64_t peak_rss_bytes = 0;     // the most that was resident at once, of both kinds
    std::uint64_t anonymous_bytes = 0;    // resident now, its own
    std::uint64_t file_backed_bytes = 0;  // resident now, of files and shared memory, which other processes may share
};

[[nodiscard]] ProcessMemory read_process_memory();
// Gives memory that was freed back to the system, where the C library can: it keeps some for what comes next.
void release_free_memory() noexcept;

}  // namespace hetero
