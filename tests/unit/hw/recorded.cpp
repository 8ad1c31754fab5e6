// Probes of /proc and /sys on recorded machines.
#include "unit/hw/support.h"

using namespace hetero;
using namespace hetero::test;

TEST_CASE("cgroup v2: the tightest limit on the way up counts") {
    const Recording root;
    write_host(root);
    root.write("proc/self/cgroup", "0::/a/b");
    root.write("sys/fs/cgroup/cgroup.controllers", "cpu memory");
    root.write("sys/fs/cgroup/a/cpu.max", "max 100000");
    root.write("sys/fs/cgroup/a/b/cpu.max", "150000 100000");
    root.write("sys/fs/cgroup/a/memory.max", "2147483648");
    root.write("sys/fs/cgroup/a/b/memory.max", "max");
    const Json document = recorded(root);
    CHECK(document["cpu"]["cpus_online"] == 16);
    CHECK(document["cpu"]["cpus_allowed"] == 16);
    CHECK(document["cpu"]["cpu_quota_cpus"] == 1.5);
    CHECK(document["cpu"]["threads_default"] == 2);
    CHECK(document["memory"]["memory_limit_bytes"] == 2147483648);
    CHECK(document["memory"]["memory_total_bytes"] == 68719476736);
    CHECK(document["memory"]["memory_usable_bytes"] == 2147483648);
    CHECK(document["memory"]["cgroup_version"] == "v2");
}

TEST_CASE("cgroup v1: the number that means unlimited is no limit") {
    const Recording root;
    write_host(root);
    root.write("proc/self/cgroup", "4:memory:/\n3:cpu,cpuacct:/");
    root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
    root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
    root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
    const Json document = recorded(root);
    CHECK(document["cpu"]["cpu_quota_cpus"].is_null());
    CHECK(document["cpu"]["threads_default"] == 16);
    CHECK(document["memory"]["memory_limit_bytes"].is_null());
    CHECK(document["memory"]["memory_limit_bytes_unknown"].is_string());
    CHECK(document["memory"]["memory_usable_bytes"] == 68719476736);
}

TEST_CASE("cgroup v1: a limit below a nested path") {
    const Recording root;
    write_host(root);
    root.write("proc/self/cgroup", "4:memory:/x/y");
    root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
    root.write("sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "8589934592");
    CHECK(recorded(root)["memory"]["memory_limit_bytes"] == 8589934592);
}

TEST_CASE("fewer CPUs allowed than online: both are reported") {
    const Recording root;
    write_host(root);
    root.write("proc/self/status", "Cpus_allowed_list:\t3");
    const Json cpu = recorded(root)["cpu"];
    CHECK(cpu["cpus_online"] == 16);
    CHECK(cpu["cpus_allowed"] == 1);
    CHECK(cpu["threads_default"] == 1);
}

TEST_CASE("instruction sets are those that the kernel lists, of those that matter") {
    const Recording root;
    write_host(root);
    const Json cpu = recorded(root)["cpu"];
    CHECK(cpu["isa"] == Json::array({"sse4_2", "avx", "f16c", "fma", "avx2", "avx512f"}));
    CHECK(cpu["virtual_machine"] == false);
    CHECK(cpu["model"] == "A CPU @ 3 GHz");
    root.write("proc/cpuinfo",
               "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\nFeatures\t: fp asimd sve i8mm");
    CHECK(recorded(root)["cpu"]["isa"] == Json::array({"asimd", "i8mm", "sve"}));
}

TEST_CASE("fabric, energy, clock and Yama are read where they are") {
    const Recording root;
    write_host(root);
    const std::string port = "sys/class/infiniband/mlx5_0/ports/1/";
    root.write(port + "state", "4: ACTIVE");
    root.write(port + "rate", "200 Gb/sec (4X HDR)");
    root.write(port + "link_layer", "InfiniBand");
    root.write("sys/class/net/eth0/operstate", "up");
    root.write("sys/class/net/eth0/speed", "25000");
    root.write("sys/class/net/eth0/mtu", "9000");
    root.write("sys/class/net/lo/speed", "-1");
    root.write("sys/class/powercap/intel-rapl:0/name", "package-0");
    root.write("sys/class/powercap/intel-rapl:0/energy_uj", "123456");
    root.write("sys/class/powercap/intel-rapl:0:1/name", "dram");
    root.write("sys/class/powercap/intel-rapl/enabled", "1");
    root.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc");
    root.write("proc/sys/kernel/yama/ptrace_scope", "1");
    const Json document = recorded(root);
    REQUIRE(document["fabric"]["rdma_ports"].size() == 1);
    CHECK(document["fabric"]["rdma_ports"][0]["device"] == "mlx5_0");
    CHECK(document["fabric"]["rdma_ports"][0]["rate"] == "200 Gb/sec (4X HDR)");
    const Json net = document["fabric"]["interfaces"];
    REQUIRE(net.size() == 2);
    CHECK(net[0]["speed_mbit_per_s"] == 25000);
    CHECK(net[0]["mtu_bytes"] == 9000);
    CHECK(net[1]["speed_mbit_per_s"].is_null());
    const Json domains = document["energy"]["rapl_domains"];
    REQUIRE(domains.size() == 2);
    CHECK(domains[0]["label"] == "package-0");
    CHECK(domains[0]["readable"] == true);
    CHECK(domains[1]["readable"] == false);
    CHECK(document["clock"]["clock_source"] == "tsc");
    CHECK(document["process_copy"]["yama_ptrace_scope"] == 1);
}

TEST_CASE("an empty machine: everything is unknown, nothing is 0") {
    const Recording root;
    const Json document = recorded(root);
    for (const char* field : {"model", "vendor", "isa", "cpus_online", "cpu_quota_cpus", "kernel_backend"}) {
        CHECK(document["cpu"][field].is_null());
    }
    for (const char* field : {"memory_total_bytes", "memory_available_bytes", "memory_limit_bytes",
                              "memory_usable_bytes", "shm_total_bytes"}) {
        CHECK(document["memory"][field].is_null());
    }
    CHECK(document["gpus"]["nvml"]["devices"].is_null());
    CHECK(document["memory_bandwidth"]["rates"].is_null());
    CHECK(document["compute"]["rates"].is_null());
    CHECK(document["disk"]["write_gb_per_s"].is_null());
    CHECK(document["fabric"]["rdma_ports"].empty());
}

TEST_CASE("huge pages, RDMA ports' nodes and energy counters are read where they are") {
    const Recording root;
    write_host(root);
    root.write("proc/meminfo", "MemTotal: 67108864 kB\nHugePages_Total:     128\nHugePages_Free:        0");
    root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
    root.write("sys/class/infiniband/mlx5_0/device/numa_node", "1");
    root.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
    root.write("sys/class/infiniband/mlx5_1/device/numa_node", "-1");
    root.write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN");
    root.write("sys/class/powercap/intel-rapl:0/name", "package-0");
    root.write("sys/class/powercap/intel-rapl:0/energy_uj", "123456789");
    root.write("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "262143328850");
    const Json document = recorded(root);
    CHECK(document["memory"]["huge_pages_total"] == 128);
    CHECK(document["memory"]["huge_pages_free"] == 0);  // a count, which may be 0
    CHECK(document["memory"]["transparent_huge_pages"] == "madvise");
    const Json ports = document["fabric"]["rdma_ports"];
    REQUIRE(ports.size() == 2);
    CHECK(ports[0]["numa_node"] == 1);
    CHECK(ports[1]["numa_node"].is_null());
    CHECK(ports[1]["state"] == "1: DOWN");
    const Json domain = document["energy"]["rapl_domains"][0];
    CHECK(domain["energy_j"].get<double>() == doctest::Approx(123.456789));
    CHECK(domain["energy_range_j"].get<double>() == doctest::Approx(262143.32885));
    CHECK(domain["power_w"].is_null());
}
