// What the operating system lets this process have: affinity mask, cgroup v1 and v2 CPU quota and memory limit.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace hetero {

struct SystemLimits {
    int cpus_online = 0;                              // of the host
    int cpus_allowed = 0;                             // affinity mask
    std::optional<double> cpu_quota;                  // CPUs' worth of time; none: unlimited
    std::uint64_t memory_host_bytes = 0;              // MemTotal
    std::uint64_t memory_available_bytes = 0;         // MemAvailable, capped by the cgroup's headroom
    std::optional<std::uint64_t> memory_limit_bytes;  // tightest cgroup limit; none: unlimited
    std::string cgroup_version;                       // "v1", "v2", "hybrid", "none"

    [[nodiscard]] int threads() const;                 // min(allowed, quota rounded up), >= 1
    [[nodiscard]] std::uint64_t memory_bytes() const;  // min(host, limit)
};

// Reads <root>/proc and <root>/sys/fs/cgroup. A recorded tree stands in for the machine in tests; with root "" the
// affinity mask comes from the kernel, else from Cpus_allowed_list in <root>/proc/self/status.
// The limit is the tightest on the way from the process's own group up to the root. Missing files mean no limit.
[[nodiscard]] SystemLimits read_system_limits(const std::string& root = "");

}  // namespace hetero
