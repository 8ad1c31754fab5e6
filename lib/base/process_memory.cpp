#include "base/process_memory.h"

#include <cstdlib>
#include <fstream>
#include <string>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace hetero {

// proc(5): lines such as "VmHWM:      5000 kB" in /proc/self/status.
ProcessMemory read_process_memory() {
    ProcessMemory memory;
    std::ifstream status("/proc/self/status");
    for (std::string name; status >> name;) {
        std::uint64_t kib = 0;
        if (name == "VmHWM:" && status >> kib) memory.peak_rss_bytes = kib * 1024;
        if (name == "RssAnon:" && status >> kib) memory.anonymous_bytes = kib * 1024;
        if ((name == "RssFile:" || name == "RssShmem:") && status >> kib) memory.file_backed_bytes += kib * 1024;
        status.ignore(1 << 16, '\n');
    }
    return memory;
}

void release_free_memory() noexcept {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

}  // namespace hetero
