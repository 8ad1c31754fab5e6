// Formats: sched_getaffinity(2), proc(5), Documentation/ABI/stable/sysfs-devices-node of the Linux kernel.
#include "base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>

namespace hetero {
namespace {

constexpr std::size_t most_numbers = 1U << 20;

// The rest of the first line that starts with `label`; empty where there is none.
std::string line_of(const std::string& path, std::string_view label = "") {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with(label)) return line.substr(label.size());
    }
    return {};
}

}  // namespace

std::optional<std::vector<int>> parse_cpu_list(std::string_view list) {
    constexpr std::string_view space = " \t\r\n";
    std::vector<int> numbers;
    while (!list.empty()) {
        std::string_view part = list.substr(0, list.find(','));
        list.remove_prefix(std::min(part.size() + 1, list.size()));
        part.remove_prefix(std::min(part.find_first_not_of(space), part.size()));
        part = part.substr(0, part.find_last_not_of(space) + 1);
        int first = 0, last = 0;
        const char* const end = part.data() + part.size();
        auto parsed = std::from_chars(part.data(), end, first);
        last = first;
        if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '-')
            parsed = std::from_chars(parsed.ptr + 1, end, last);
        if (parsed.ec != std::errc() || parsed.ptr != end || first < 0 || last < first) return std::nullopt;
        if (static_cast<std::size_t>(last - first) >= most_numbers - numbers.size()) return std::nullopt;
        for (int number = first; number <= last; ++number) numbers.push_back(number);
    }
    if (numbers.empty()) return std::nullopt;
    return numbers;
}

std::vector<int> allowed_cpus(const std::string& root) {
    std::vector<int> cpus;
    // The kernel refuses a mask smaller than its own with EINVAL.
    for (int size = 1024; root.empty() && cpus.empty() && size <= (1 << 20); size *= 2) {
        cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(size));
        if (set == nullptr) break;
        const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(size));
        const bool read = ::sched_getaffinity(0, bytes, set) == 0;
        for (int cpu = 0; read && cpu < size; ++cpu) {
            if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
        }
        CPU_FREE(set);
    }
    if (!cpus.empty()) return cpus;
    return parse_cpu_list(line_of(root + "/proc/self/status", "Cpus_allowed_list:")).value_or(cpus);
}

std::vector<NumaNode> numa_nodes(const std::string& root) {
    const std::string base = root + "/sys/devices/system/node";
    const std::vector<int> allowed = allowed_cpus(root);
    std::vector<NumaNode> nodes;
    for (const int id : parse_cpu_list(line_of(base + "/online")).value_or(std::vector<int>())) {
        NumaNode node{id, {}};
        const auto cpus = parse_cpu_list(line_of(base + "/node" + std::to_string(id) + "/cpulist"));
        for (const int cpu : cpus.value_or(std::vector<int>())) {
            if (std::binary_search(allowed.begin(), allowed.end(), cpu)) node.cpus.push_back(cpu);
        }
        nodes.push_back(std::move(node));
    }
    return nodes;
}

}  // namespace hetero
