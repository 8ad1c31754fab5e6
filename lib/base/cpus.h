// The CPUs that this process may use, and the NUMA nodes that they belong to.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hetero {

// "0-3,8,10-11", as the kernel writes CPUs and nodes: the numbers in order. Nothing where it cannot be read.
[[nodiscard]] std::optional<std::vector<int>> parse_cpu_list(std::string_view list);

// The affinity mask, ascending; empty where it cannot be read. With another root than "", Cpus_allowed_list in
// <root>/proc/self/status: a recorded machine.
[[nodiscard]] std::vector<int> allowed_cpus(const std::string& root = "");

struct NumaNode {
    int id = 0;
    std::vector<int> cpus;  // that this process may use; of a node of memory alone none
};
// The nodes of <root>/sys/devices/system/node, in order; empty where the system does not tell.
[[nodiscard]] std::vector<NumaNode> numa_nodes(const std::string& root = "");

}  // namespace hetero
