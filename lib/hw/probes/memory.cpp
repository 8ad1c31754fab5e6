// Memory of the host, what the cgroup leaves of it, and /dev/shm, which MPI libraries use between processes.
#include <sys/statvfs.h>

#include <charconv>

#include "hw/probes/probes.h"

namespace hetero::hw {
namespace {

// "SwapTotal: 1024 kB" -> bytes. 0 is a value here: no swap.
std::optional<std::uint64_t> meminfo_bytes(const Context& context, std::string_view label) {
    const auto text = read_text(context.path("/proc/meminfo"));
    const auto value = text ? line_value(*text, label) : std::nullopt;
    if (!value) return std::nullopt;
    std::uint64_t kib = 0;
    const auto [stop, ec] = std::from_chars(value->data(), value->data() + value->size(), kib);
    if (ec != std::errc() || kib > (1ULL << 50)) return std::nullopt;
    return kib * 1024;
}

template <class T>
std::optional<T> nonzero(T value) {
    return value != 0 ? std::optional(value) : std::nullopt;
}

}  // namespace

Json probe_memory(const Context& context) {
    Json section;
    const SystemLimits& limits = context.limits;
    put(section, "memory_total_bytes", nonzero(limits.memory_host_bytes), "no MemTotal in /proc/meminfo");
    put(section, "memory_available_bytes", nonzero(limits.memory_available_bytes), "no MemAvailable in /proc/meminfo");
    put(section, "memory_limit_bytes", limits.memory_limit_bytes, "no cgroup limits memory");
    put(section, "memory_usable_bytes", nonzero(limits.memory_bytes()), "neither host memory nor a limit is known");
    section["cgroup_version"] = limits.cgroup_version;
    put(section, "swap_total_bytes", meminfo_bytes(context, "SwapTotal"), "no SwapTotal in /proc/meminfo");
    put(section, "huge_page_bytes", meminfo_bytes(context, "Hugepagesize"), "no Hugepagesize in /proc/meminfo");

    struct statvfs shm {};
    if (context.recorded() || ::statvfs("/dev/shm", &shm) != 0) {
        const char* reason = context.recorded() ? not_recorded : "there is no /dev/shm";
        put_unknown(section, "shm_total_bytes", reason);
        put_unknown(section, "shm_free_bytes", reason);
    } else {
        section["shm_total_bytes"] = static_cast<std::uint64_t>(shm.f_blocks) * shm.f_frsize;
        section["shm_free_bytes"] = static_cast<std::uint64_t>(shm.f_bavail) * shm.f_frsize;
    }
    return section;
}

}  // namespace hetero::hw
