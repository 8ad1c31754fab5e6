// The list that one goes through before a job is started.
#include "hw/preflight.h"

#include <algorithm>

#include "support/golden.h"
#include "unit/hw/support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

hw::Profile machine_of(const std::string& toml) {
    auto profile = hw::parse_profile("profile_schema = 2\n" + toml, "node");
    REQUIRE_MESSAGE(profile.has_value(), profile.error().message);
    return std::move(*profile);
}

hw::Check check_of(const hw::Profile& profile, const char* name, const hw::Demand& demand = {},
                   std::size_t machine = 0) {
    const auto checks = hw::preflight(profile, profile.machines.at(machine), demand);
    const auto found = std::find_if(checks.begin(), checks.end(), [&](const hw::Check& c) { return c.name == name; });
    REQUIRE(found != checks.end());
    CHECK_FALSE(found->found.empty());
    if (found->result == hw::Fitness::fail) CHECK_FALSE(found->remedy.empty());
    return *found;
}

using hw::Fitness;

}  // namespace

TEST_CASE("precision: what is asked for has an executable path") {
    const hw::Profile profile = machine_of(R"(
[[compute.rates]]
dtype = "int4"
gemm_gflop_per_s = 100
[[compute.rates]]
dtype = "fp8_e4m3fn"
executable = false
unsupported = "no kernel"
[[attention.rates]]
kv_dtype = "int8"
decode_gb_per_s = 4
[[kv_codecs.rates]]
codec = "int4:channel:g32:asym"
encode_gb_per_s = 2
)");
    hw::Demand demand;
    CHECK(check_of(profile, "precision", demand).found == "CPU: int4");
    demand.dtypes = {"int4"};
    demand.kv_dtypes = {"int8"};
    demand.codecs = {"int4", "f16"};
    CHECK(check_of(profile, "precision", demand).result == Fitness::ok);
    demand.kv_dtypes = {"int8", "int4"};
    CHECK(check_of(profile, "precision", demand).result == Fitness::warn);  // not measured
    demand.dtypes = {"int4", "fp8_e4m3fn"};
    const hw::Check lacking = check_of(profile, "precision", demand);
    CHECK(lacking.result == Fitness::fail);
    CHECK(lacking.found == "no executable path: fp8_e4m3fn weights (no kernel)");
    demand.gpu = true;
    CHECK(check_of(profile, "precision", demand).result == Fitness::warn);  // no GPU whose kernels are known
    demand.dtypes = demand.kv_dtypes = {};
    CHECK(check_of(profile, "precision", demand).result == Fitness::ok);  // what is on the link the host converts
}

TEST_CASE("driver: the library belongs to the driver") {
    const auto with = [](const char* nvml, const char* cuda) {
        return machine_of(
            fmt::format("[gpus.nvml]\ndriver_version = \"550.1\"\ncuda_version = \"{}\"\n[gpus.cuda]\n"
                        "cuda_version = \"{}\"\n[[gpus.cuda.devices]]\nname = \"G\"\n",
                        nvml, cuda));
    };
    hw::Demand demand;
    CHECK(check_of(machine_of(""), "driver", demand).result == Fitness::ok);
    demand.gpu = true;
    CHECK(check_of(with("12.4", "12.4"), "driver", demand).result == Fitness::ok);
    CHECK(check_of(with("12.4", "12.6"), "driver", demand).result == Fitness::fail);
    const hw::Check none =
        check_of(machine_of("[gpus.cuda]\ndevices_unknown = \"no NVIDIA driver\""), "driver", demand);
    CHECK(none.result == Fitness::fail);
    CHECK(none.found == "no GPU: no NVIDIA driver");
}

TEST_CASE("link: bandwidth against what KV asks for") {
    const auto read = hw::read_profile(testdata("hw/mixed-fleet.toml"));
    REQUIRE(read.has_value());
    hw::Profile fleet = *read;
    hw::Demand demand;
    CHECK(check_of(fleet, "link", demand).result == Fitness::ok);
    demand.peer = "h200";  // machine 0 is l40s: 25 GB/s, specified
    demand.link_gb_per_s = 3;
    CHECK(check_of(fleet, "link", demand).result == Fitness::warn);
    fleet.links[0].origin = hw::Origin::measured;
    CHECK(check_of(fleet, "link", demand).result == Fitness::ok);
    demand.link_gb_per_s = 20;
    CHECK(check_of(fleet, "link", demand).result == Fitness::warn);
    demand.link_gb_per_s = 25.1;
    CHECK(check_of(fleet, "link", demand).result == Fitness::fail);
    demand.link_gb_per_s = 3;
    demand.planned_link_gb_per_s = 40;
    CHECK(check_of(fleet, "link", demand).result == Fitness::warn);
    demand.planned_link_gb_per_s = 27;  // within a tenth
    CHECK(check_of(fleet, "link", demand).result == Fitness::ok);
    fleet.links[0].asymmetric = true;
    CHECK(check_of(fleet, "link", demand).result == Fitness::warn);
    demand.peer = "cpu";
    CHECK(check_of(fleet, "link", demand).found == "no link from l40s to cpu is known");
    demand.sends = false;
    CHECK(check_of(fleet, "link", demand).found == "no link from cpu to l40s is known");
}

TEST_CASE("memory, pinned memory and /dev/shm") {
    hw::Demand demand;
    demand.state_bytes = 300'000'000;
    CHECK(check_of(machine_of("[memory]\nmemory_available_bytes = 8000000000"), "memory", demand).result ==
          Fitness::ok);
    CHECK(check_of(machine_of("[memory]\nmemory_available_bytes = 2000000000"), "memory", demand).result ==
          Fitness::warn);
    CHECK(check_of(machine_of("[memory]\nmemory_available_bytes = 599999999"), "memory", demand).result ==
          Fitness::fail);
    CHECK(check_of(machine_of(""), "memory", demand).result == Fitness::warn);

    // Weights on the host, or on a GPU.
    demand.weight_bytes = 7'500'000'000;
    const auto host = check_of(machine_of("[memory]\nmemory_available_bytes = 8000000000"), "memory", demand);
    CHECK(host.result == Fitness::fail);
    CHECK(host.found.find("weights take") != std::string::npos);
    demand.weight_bytes = 5'000'000'000;
    CHECK(check_of(machine_of("[memory]\nmemory_available_bytes = 8000000000"), "memory", demand).result ==
          Fitness::ok);
    const auto with_gpu = [](const char* bytes) {
        return machine_of(
            fmt::format("[memory]\nmemory_available_bytes = 4000000000\n[[gpus.cuda.devices]]\nname = "
                        "\"G\"\nmemory_total_bytes = {}\n",
                        bytes));
    };
    demand.gpu = true;
    CHECK(check_of(with_gpu("6000000000"), "memory", demand).result == Fitness::ok);
    CHECK(check_of(with_gpu("4000000000"), "memory", demand).result == Fitness::fail);
    demand.gpu = false;
    demand.weight_bytes.reset();

    const std::string active = "[[fabric.rdma_ports]]\nstate = \"4: ACTIVE\"\n",
                      down = "[[fabric.rdma_ports]]\nstate = \"1: DOWN\"\n",
                      low = "[limits]\nmemlock_bytes = 8388608\n";
    CHECK(check_of(machine_of(low + down), "memlock", demand).result == Fitness::ok);
    CHECK(check_of(machine_of(low + active), "memlock", demand).result == Fitness::fail);
    CHECK(check_of(machine_of("[limits]\nmemlock_unlimited = true\n" + active), "memlock", demand).result ==
          Fitness::ok);
    demand.gpu = true;
    CHECK(check_of(machine_of(low), "memlock", demand).result == Fitness::warn);

    CHECK(check_of(machine_of("[memory]\nshm_free_bytes = 65536"), "shm").result == Fitness::fail);
    CHECK(check_of(machine_of("[memory]\nshm_free_bytes = 67108864"), "shm").result == Fitness::warn);
    CHECK(check_of(machine_of("[memory]\nshm_free_bytes = 1073741824"), "shm").result == Fitness::ok);
    CHECK(check_of(machine_of(""), "shm").result == Fitness::warn);
}

TEST_CASE("huge pages, time, CPUs and copies between processes") {
    CHECK(check_of(machine_of("[memory]\ntransparent_huge_pages = \"madvise\""), "hugepages").result == Fitness::ok);
    CHECK(check_of(machine_of("[memory]\ntransparent_huge_pages = \"never\""), "hugepages").result == Fitness::warn);
    CHECK(check_of(machine_of("[memory]\ntransparent_huge_pages = \"never\"\nhuge_pages_free = 512"), "hugepages")
              .result == Fitness::ok);
    CHECK(check_of(machine_of("[clock]\nsynchronized = true"), "time").result == Fitness::ok);
    CHECK(check_of(machine_of("[clock]\nsynchronized = false"), "time").result == Fitness::warn);
    CHECK(check_of(machine_of("[cpu]\ncpus_online = 16\ncpus_allowed = 1"), "cpus").result == Fitness::warn);
    CHECK(check_of(machine_of("[cpu]\ncpus_online = 16\ncpus_allowed = 8"), "cpus").result == Fitness::ok);
    CHECK(check_of(machine_of("[process_copy]\ncma_allowed = false"), "copy").result == Fitness::warn);
    CHECK(check_of(machine_of("[process_copy]\ncma_allowed = true"), "copy").result == Fitness::ok);
}
