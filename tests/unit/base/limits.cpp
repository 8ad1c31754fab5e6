// Recorded machines: trees in place of /proc and /sys/fs/cgroup.
#include "base/limits.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "support/temp_dir.h"

using namespace hetero;

namespace {

constexpr std::uint64_t gib = 1ULL << 30;
const std::string unlimited_v1 = "9223372036854771712\n";

// 16 CPUs, all allowed, 64 GiB of memory, 48 GiB of it available.
struct Machine {
    test::TempDir root;

    Machine() {
        root.write("sys/devices/system/cpu/online", "0-15\n");
        root.write("proc/self/status",
                   "Name:\tx\nCpus_allowed:\tffff\nCpus_allowed_list:\t0-15\nMems_allowed_list:\t0\n");
        root.write("proc/meminfo",
                   "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   50331648 kB\n");
    }
    Machine& file(const std::string& name, std::string_view text) {
        root.write(name, text);
        return *this;
    }
    Machine& cgroup(const std::string& name, std::string_view text) { return file("sys/fs/cgroup/" + name, text); }
    [[nodiscard]] SystemLimits limits() const { return read_system_limits(root.path()); }
};

void check_host(const SystemLimits& limits) {
    CHECK(limits.threads() == 16);
    CHECK_FALSE(limits.cpu_quota.has_value());
    CHECK_FALSE(limits.memory_limit_bytes.has_value());
    CHECK(limits.memory_bytes() == 64 * gib);
    CHECK(limits.memory_available_bytes == 48 * gib);
}

}  // namespace

TEST_CASE("v2: the tightest limit on the way up counts, part of a CPU is a thread") {
    Machine machine;
    machine.file("proc/self/cgroup", "0::/a/b\n").cgroup("cgroup.controllers", "cpu memory\n");
    machine.cgroup("a/b/cpu.max", "150000 100000\n").cgroup("a/cpu.max", "max 100000\n");
    machine.cgroup("a/b/memory.max", "max\n").cgroup("a/memory.max", "2147483648\n");
    SystemLimits limits = machine.limits();
    CHECK(limits.cgroup_version == "v2");
    CHECK(limits.cpus_online == 16);
    CHECK(limits.cpus_allowed == 16);
    REQUIRE(limits.cpu_quota.has_value());
    CHECK(*limits.cpu_quota == 1.5);
    CHECK(limits.threads() == 2);
    CHECK(limits.memory_limit_bytes == 2 * gib);
    CHECK(limits.memory_bytes() == 2 * gib);
    CHECK(limits.memory_available_bytes == 2 * gib);

    SUBCASE("an outer quota that is tighter") {
        machine.cgroup("a/cpu.max", "50000 100000\n");
        CHECK(machine.limits().threads() == 1);
    }
    SUBCASE("a quota of whole CPUs is not rounded up, and its period may be left out") {
        machine.cgroup("a/b/cpu.max", "300000\n");
        CHECK(machine.limits().threads() == 3);
    }
    SUBCASE("an inner memory limit that is tighter") {
        machine.cgroup("a/b/memory.max", "1073741824\n");
        CHECK(machine.limits().memory_bytes() == gib);
    }
    SUBCASE("a limit above the host's memory changes nothing") {
        machine.cgroup("a/memory.max", "1099511627776\n");
        CHECK(machine.limits().memory_bytes() == 64 * gib);
        CHECK(machine.limits().memory_available_bytes == 48 * gib);
    }
    SUBCASE("more CPUs' worth of time than CPUs") {
        machine.cgroup("a/b/cpu.max", "6400000 100000\n");
        CHECK(machine.limits().threads() == 16);
    }
    SUBCASE("what the group uses is not available, files that can be dropped are") {
        machine.cgroup("a/memory.current", "1610612736\n")
            .cgroup("a/memory.stat", "anon 1\nfile 7\ninactive_file 536870912\n");
        CHECK(machine.limits().memory_available_bytes == gib);
        CHECK(machine.limits().memory_bytes() == 2 * gib);
    }
    SUBCASE("a group that is over its limit has nothing available") {
        machine.cgroup("a/memory.current", "3221225472\n");
        CHECK(machine.limits().memory_available_bytes == 0);
    }
    SUBCASE("damaged files are no limit") {
        machine.cgroup("a/b/cpu.max", "")
            .cgroup("a/cpu.max", "-5 0\n")
            .cgroup("a/b/memory.max", "lots\n")
            .cgroup("a/memory.max", "99999999999999999999999\n");
        check_host(machine.limits());
    }
}

TEST_CASE("v1: the number that means no limit, and a quota of -1") {
    Machine machine;
    machine.file("proc/self/cgroup", "4:memory:/\n3:cpu,cpuacct:/\n1:name=systemd:/\n");
    machine.cgroup("memory/memory.limit_in_bytes", unlimited_v1).cgroup("cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    machine.cgroup("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    CHECK(machine.limits().cgroup_version == "v1");
    check_host(machine.limits());
    SUBCASE("with pages of 64 KiB the number is another one") {
        machine.cgroup("memory/memory.limit_in_bytes", "9223372036854710272\n");
        check_host(machine.limits());
    }
}

TEST_CASE("v1: limits of a nested group") {
    Machine machine;
    machine.file("proc/self/cgroup", "12:cpuset:/\n4:memory:/x/y\n3:cpu,cpuacct:/x/y\n");
    machine.cgroup("memory/memory.limit_in_bytes", unlimited_v1).cgroup("memory/x/memory.limit_in_bytes", unlimited_v1);
    machine.cgroup("memory/x/y/memory.limit_in_bytes", "8589934592\n");
    CHECK(machine.limits().memory_limit_bytes == 8 * gib);
    CHECK(machine.limits().memory_bytes() == 8 * gib);
    CHECK(machine.limits().threads() == 16);

    SUBCASE("an outer group is tighter") {
        machine.cgroup("memory/x/memory.limit_in_bytes", "4294967296\n");
        CHECK(machine.limits().memory_bytes() == 4 * gib);
    }
    SUBCASE("the quota is where the controller is mounted, under each name that is in use") {
        std::string mount;
        SUBCASE("its own name") { mount = "cpu"; }
        SUBCASE("both names") { mount = "cpu,cpuacct"; }
        machine.cgroup(mount + "/x/cpu.cfs_quota_us", "250000\n").cgroup(mount + "/x/cpu.cfs_period_us", "100000\n");
        CHECK(machine.limits().cpu_quota == 2.5);
        CHECK(machine.limits().threads() == 3);
    }
    SUBCASE("usage and files that can be dropped") {
        machine.cgroup("memory/x/y/memory.usage_in_bytes", "6442450944\n")
            .cgroup("memory/x/y/memory.stat", "inactive_file 1\ntotal_inactive_file 2147483648\n");
        CHECK(machine.limits().memory_available_bytes == 4 * gib);
    }
    SUBCASE("a limit further up than can be seen") {
        machine.cgroup("memory/x/y/memory.stat", "hierarchical_memory_limit 1073741824\n");
        CHECK(machine.limits().memory_bytes() == gib);
    }
}

TEST_CASE("v1: in a container without a cgroup namespace the path is the host's, the mount shows the group itself") {
    Machine machine;
    machine.file("proc/self/cgroup", "4:memory:/docker/f00\n3:cpu,cpuacct:/docker/f00/inner\n");
    SUBCASE("mountinfo tells") {
        machine.file("proc/self/mountinfo",
                     "31 30 0:28 / /proc rw - proc proc rw\n"
                     "36 35 0:30 /docker/f00 /sys/fs/cgroup/my\\040mem ro,nosuid shared:1 - cgroup cgroup rw,memory\n"
                     "37 35 0:31 /docker/f00 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n");
        machine.cgroup("my mem/memory.limit_in_bytes", "1073741824\n")
            .cgroup("cpu,cpuacct/inner/cpu.cfs_quota_us", "400000\n");
    }
    SUBCASE("without mountinfo, the groups that can be found are read") {
        machine.cgroup("memory/memory.limit_in_bytes", "1073741824\n")
            .cgroup("cpu,cpuacct/cpu.cfs_quota_us", "400000\n");
    }
    CHECK(machine.limits().memory_bytes() == gib);
    CHECK(machine.limits().threads() == 4);
}

TEST_CASE("v2 in a cgroup namespace: the path is /, the mount shows the group itself") {
    Machine machine;
    machine.file("proc/self/cgroup", "0::/\n")
        .file("proc/self/mountinfo", "36 35 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
    machine.cgroup("cpu.max", "200000 100000\n").cgroup("memory.max", "1073741824\n");
    CHECK(machine.limits().threads() == 2);
    CHECK(machine.limits().memory_bytes() == gib);
    SUBCASE("a process that was moved out of it from outside") {
        machine.file("proc/self/cgroup", "0::/../../elsewhere\n");
        CHECK(machine.limits().threads() == 2);
    }
}

TEST_CASE("hybrid: controllers in v1, and a v2 hierarchy without them") {
    Machine machine;
    machine.file("proc/self/cgroup", "4:memory:/j\n3:cpu:/j\n0::/j\n");
    machine.cgroup("unified/j/cgroup.procs", "1\n")
        .cgroup("memory/j/memory.limit_in_bytes", "2147483648\n")
        .cgroup("cpu/j/cpu.cfs_quota_us", "100000\n");
    machine.cgroup("cpu/j/cpu.cfs_period_us", "50000\n");
    CHECK(machine.limits().cgroup_version == "hybrid");
    CHECK(machine.limits().memory_bytes() == 2 * gib);
    CHECK(machine.limits().threads() == 2);
    SUBCASE("a limit in v2 counts too") {
        machine.cgroup("unified/j/memory.max", "1073741824\n");
        CHECK(machine.limits().memory_bytes() == gib);
    }
}

TEST_CASE("nothing there means no limit") {
    Machine machine;
    CHECK(machine.limits().cgroup_version == "none");
    check_host(machine.limits());
    SUBCASE("membership of groups whose files are missing") {
        machine.file("proc/self/cgroup", "4:memory:/x/y\n3:cpu:/x\n0::/a\n");
        check_host(machine.limits());
    }
    SUBCASE("lines that are none") {
        machine.file("proc/self/cgroup", "\n:\nnonsense\n4:memory\n::::\n");
        check_host(machine.limits());
    }
    SUBCASE("limits at the mount point count where the membership cannot be read") {
        machine.cgroup("memory/memory.limit_in_bytes", "1073741824\n");
        CHECK(machine.limits().cgroup_version == "v1");
        CHECK(machine.limits().memory_bytes() == gib);
    }
    SUBCASE("an empty tree") {
        const test::TempDir empty;
        const SystemLimits limits = read_system_limits(empty.path());
        CHECK(limits.threads() == 1);
        CHECK(limits.memory_bytes() == 0);
        CHECK(limits.cgroup_version == "none");
    }
}

TEST_CASE("the affinity mask is read from status") {
    Machine machine;
    struct Case {
        const char* list;
        int cpus;
    };
    for (const Case& c : {Case{"3", 1}, {"0-3", 4}, {"0-3,8,10-11", 7}, {"0,2,4", 3}}) {
        machine.file("proc/self/status", std::string("Cpus_allowed_list:\t") + c.list + "\n");
        CHECK(machine.limits().cpus_allowed == c.cpus);
        CHECK(machine.limits().threads() == c.cpus);
    }
    for (const char* damaged : {"", "-", "3-1", "a", "0-", "1,,2", "0-99999999999"}) {
        machine.file("proc/self/status", std::string("Cpus_allowed_list:\t") + damaged + "\n");
        CHECK_MESSAGE(machine.limits().threads() == 16, damaged);
    }
    std::filesystem::remove(machine.root / "sys/devices/system/cpu/online");
    machine.file("proc/cpuinfo", "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\n");
    CHECK(machine.limits().cpus_online == 2);
}

TEST_CASE("this machine") {
    const SystemLimits limits = read_system_limits();
    CHECK(limits.cpus_online >= limits.cpus_allowed);
    CHECK(limits.cpus_allowed >= 1);
    CHECK(limits.threads() >= 1);
    CHECK(limits.threads() <= limits.cpus_allowed);
    CHECK(limits.memory_host_bytes > 64U << 20);
    CHECK(limits.memory_bytes() > 0);
    CHECK(limits.memory_bytes() <= limits.memory_host_bytes);
    CHECK(limits.memory_available_bytes <= limits.memory_bytes());
}
