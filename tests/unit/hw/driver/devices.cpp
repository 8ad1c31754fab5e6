// The section of GPUs, by libraries that stand in for the driver's (LD_LIBRARY_PATH), with what they cannot say.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "hw/probes/probes.h"
#include "hw/profile.h"

using namespace hetero;
using hw::Json;

namespace {

Json gpus(bool measure = false) {
    hw::ProbeOptions options;
    options.measure = measure;
    options.seconds_each = 0.01;
    const hw::Context context{options, read_system_limits(""), 1};
    return hw::probe_gpus(context);
}

struct Says {
    Says(const char* name, const char* text) : name_(name) { ::setenv(name, text, 1); }
    ~Says() { ::unsetenv(name_); }
    const char* name_;
};

// Nothing is null without a reason, and nothing that can be unknown is 0.
void check_reasons(const Json& table) {
    for (const auto& [name, value] : table.items()) {
        CAPTURE(name);
        if (value.is_null()) CHECK_FALSE(table.value(name + "_unknown", std::string()).empty());
        if (value.is_number()) CHECK(value != 0);
        if (value.is_object()) check_reasons(value);
        for (const Json& item : value.is_array() ? value : Json::array())
            if (item.is_object()) check_reasons(item);
    }
}

}  // namespace

TEST_CASE("what NVML knows of a device, and why it does not know the rest") {
    const Json nvml = gpus().at("nvml");
    check_reasons(nvml);
    CHECK(nvml.at("driver_version") == "580.65.06");
    CHECK(nvml.at("cuda_version") == "13.2");
    REQUIRE(nvml.at("devices").size() == 3);
    const Json& whole = nvml.at("devices")[0];
    for (const auto& [field, value] : std::initializer_list<std::pair<const char*, Json>>{
             {"name", "NVIDIA H100 80GB HBM3"},
             {"memory_total_bytes", 85520809984},
             {"memory_free_bytes", 84000000000},
             {"compute_capability", "9.0"},
             {"pci_bus_id", "0000:3b:00.0"},
             {"ecc_enabled", true},
             {"mig_enabled", false},
             {"pcie_generation", 5},
             {"pcie_lanes", 16},
             {"pcie_generation_now", 4},
             {"nvlinks_active", 9},
             {"nvlink_version", 4},
             {"power_limit_w", 700.0},
             {"energy_counter", true},
             {"energy_j", 1234.5},
         }) {
        CAPTURE(field);
        CHECK(whole.at(field) == value);
    }
    CHECK(whole.at("pcie_lanes_now_unknown") == "this libnvidia-ml.so.1 has no nvmlDeviceGetCurrPcieLinkWidth");
    CHECK(whole.at("power_w_unknown") == "nvmlDeviceGetPowerUsage gives 0");
    const Json& least = nvml.at("devices")[1];
    CHECK(least.at("compute_capability") == "7.5");
    for (const char* field : {"memory_total_bytes", "memory_free_bytes", "ecc_enabled", "mig_enabled", "nvlinks_active",
                              "power_limit_w", "energy_j", "pcie_generation_now"}) {
        CAPTURE(field);
        CHECK(least.at(field).is_null());
        CHECK(least.at(std::string(field) + "_unknown").get<std::string>().ends_with(": Not Supported (3)"));
    }
    CHECK(least.at("nvlink_version_unknown") == "no NVLink is active");
    CHECK(least.at("energy_counter") == false);
    CHECK(nvml.at("devices")[2].at("name_unknown") == "nvmlDeviceGetHandleByIndex_v2: GPU is lost (15)");
}

TEST_CASE("what CUDA knows of a device, and that nothing was measured") {
    const Json cuda = gpus().at("cuda");
    check_reasons(cuda);
    REQUIRE(cuda.at("devices").size() == 1);
    const Json& device = cuda.at("devices")[0];
    CHECK(device.at("name") == "NVIDIA H100 80GB HBM3");
    CHECK(device.at("memory_total_bytes") == 85520809984);
    CHECK(device.at("compute_capability") == "9.0");
    CHECK(device.at("multiprocessors") == 132);
    CHECK(device.at("l2_cache_bytes").is_null());
    CHECK(device.at("copies").at("host_to_device_gb_per_s_unknown") == hw::not_measured);
    for (const Json& rate : device.at("compute").at("rates")) CHECK(rate.at("unsupported") == hw::not_measured);
    CHECK(device.at("stages").is_null());
}

TEST_CASE("copies are measured, and only sound ones count") {
    const auto copies = [] { return gpus(true).at("cuda").at("devices")[0].at("copies"); };
    const Json sound = copies();
    for (const char* field : {"host_to_device_gb_per_s", "device_to_host_gb_per_s", "pageable_host_to_device_gb_per_s",
                              "pageable_device_to_host_gb_per_s"})
        CHECK(sound.at(field) > 0.01);
    const Says badly("CUDA_COPIES_BADLY", "1");
    CHECK(copies().at("host_to_device_gb_per_s_unknown") ==
          "what comes back from the device differs from what was sent");
}

TEST_CASE("a driver that does not start has its reason") {
    const Says nvml("NVML_SAYS", "no"), cuda("CUDA_SAYS", "100");
    const Json section = gpus();
    CHECK(section.at("nvml").at("devices_unknown") == "nvmlInit_v2: Driver Not Loaded (9)");
    CHECK(section.at("cuda").at("devices_unknown") == "cuInit: no CUDA-capable device is detected (100)");
    const Says stub("CUDA_SAYS", "34");
    CHECK(gpus().at("cuda").at("devices_unknown").get<std::string>().find("stub") != std::string::npos);
}

TEST_CASE("a profile with these devices is read, and one list belongs to the other") {
    hw::ProbeOptions options;
    options.measure = false;
    const auto texts = hw::probe(options);
    REQUIRE_MESSAGE(texts.has_value(), texts.error().message);
    for (const std::string& text : {texts->json, texts->toml}) {
        const auto profile = hw::parse_profile(text, "gpus");
        REQUIRE_MESSAGE(profile.has_value(), profile.error().message);
        REQUIRE(profile->machines.at(0).gpus.size() == 1);
        CHECK(profile->machines[0].gpus[0].power_limit_w == 700);
        CHECK(profile->machines[0].gpus[0].stages.empty());
        CHECK(profile->machines[0].driver_cuda_version == profile->machines[0].cuda_version);
    }
}
