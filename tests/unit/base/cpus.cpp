// Recorded machines: trees in place of /proc and /sys.
#include "base/cpus.h"

#include <doctest/doctest.h>

#include "support/temp_dir.h"

using namespace hetero;

TEST_CASE("lists of CPUs as the kernel writes them") {
    CHECK(parse_cpu_list("0-3,8,10-11\n") == std::vector<int>{0, 1, 2, 3, 8, 10, 11});
    CHECK(parse_cpu_list(" 5") == std::vector<int>{5});
    for (const char* damaged : {"", "\n", "a", "3-1", "-1", "1-", "1,,2", "0-99999999", "1 2", "4294967296"}) {
        INFO(damaged);
        CHECK_FALSE(parse_cpu_list(damaged).has_value());
    }
}

TEST_CASE("NUMA nodes with the CPUs that the affinity mask leaves") {
    test::TempDir root;
    root.write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t2-5,9\n");
    CHECK(allowed_cpus(root.path()) == std::vector<int>{2, 3, 4, 5, 9});
    CHECK(numa_nodes(root.path()).empty());
    root.write("sys/devices/system/node/online", "0-1,3\n");
    root.write("sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
    root.write("sys/devices/system/node/node1/cpulist", "4-7\n");
    root.write("sys/devices/system/node/node3/cpulist", "\n");  // memory alone
    const std::vector<NumaNode> nodes = numa_nodes(root.path());
    REQUIRE(nodes.size() == 3);
    CHECK(nodes[0].id == 0);
    CHECK(nodes[0].cpus == std::vector<int>{2, 3, 9});
    CHECK(nodes[1].id == 1);
    CHECK(nodes[1].cpus == std::vector<int>{4, 5});
    CHECK(nodes[2].id == 3);
    CHECK(nodes[2].cpus.empty());
}

TEST_CASE("this machine: what is allowed is not empty, and nodes have no CPU besides") {
    const std::vector<int> allowed = allowed_cpus();
    REQUIRE_FALSE(allowed.empty());
    std::size_t cpus = 0;
    for (const NumaNode& node : numa_nodes()) cpus += node.cpus.size();
    CHECK(cpus <= allowed.size());
}
