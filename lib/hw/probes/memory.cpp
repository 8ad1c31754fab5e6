// Memory of the host, what the cgroup leaves of it, /dev/shm, which MPI libraries use between processes, and the limits
// of this process (setrlimit(2)).
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <charconv>

#include "hw/probes/probes.h"

namespace hetero::hw {
namespace {

// "SwapTotal: 1024 kB" -> bytes. 0 is a value here: no swap.
std::optional<std::uint64_t> meminfo_number(const Context& context, std::string_view label) {
    const auto text = read_text(context.path("/proc/meminfo"));
    const auto value = text ? line_value(*text, label) : std::nullopt;
    if (!value) return std::nullopt;
    std::uint64_t number = 0;
    const auto [stop, ec] = std::from_chars(value->data(), value->data() + value->size(), number);
    if (ec != std::errc() || number > (1ULL << 50)) return std::nullopt;
    return number;
}
std::optional<std::uint64_t> meminfo_bytes(const Context& context, std::string_view label) {
    const auto kib = meminfo_number(context, label);
    return kib ? std::optional(*kib * 1024) : std::nullopt;
}

// "always [madvise] never" -> "madvise"
std::optional<std::string> chosen(const std::optional<std::string>& text) {
    const std::size_t open = text ? text->find('[') : std::string::npos;
    const std::size_t close = open == std::string::npos ? open : text->find(']', open);
    return close == std::string::npos ? std::nullopt : std::optional(text->substr(open + 1, close - open - 1));
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
    put(section, "huge_pages_total", meminfo_number(context, "HugePages_Total"), "no HugePages_Total in /proc/meminfo");
    put(section, "huge_pages_free", meminfo_number(context, "HugePages_Free"), "no HugePages_Free in /proc/meminfo");
    put(section, "transparent_huge_pages",
        chosen(read_text(context.path("/sys/kernel/mm/transparent_hugepage/enabled"))),
        "no /sys/kernel/mm/transparent_hugepage/enabled");

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

Json probe_limits(const Context& context) {
    struct Limit {
        const char* name;
        int resource;
    };
    Json section;
    for (const auto& [name, resource] : {Limit{"memlock_bytes", RLIMIT_MEMLOCK}, Limit{"open_files", RLIMIT_NOFILE},
                                         Limit{"processes", RLIMIT_NPROC}}) {
        rlimit limit{};
        if (context.recorded() || ::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) {
            put_unknown(section, name, context.recorded() ? not_recorded : "getrlimit failed");
            continue;
        }
        const bool limited = limit.rlim_cur != RLIM_INFINITY;
        put(section, name, limited ? std::optional<std::uint64_t>(limit.rlim_cur) : std::nullopt, "not limited");
        if (resource == RLIMIT_MEMLOCK) section["memlock_unlimited"] = !limited;
    }
    return section;
}

}  // namespace hetero::hw
