#include <algorithm>
#include <cstring>

#include "hw/probes/gpu_drivers.h"
#include "hw/probes/nvml.h"

namespace hetero::hw {
namespace {

using namespace nvml;

class Api {
public:
    explicit Api(const Library& library)
        : library_(library), error_string_(library.symbol<ErrorString>("nvmlErrorString")) {}

    // Empty where the function was there and has answered, else why not.
    template <class Function, class... Args>
    [[nodiscard]] std::string ask(const char* name, Args... args) const {
        Function* const function = library_.symbol<Function>(name);
        if (function == nullptr) return fmt::format("this libnvidia-ml.so.1 has no {}", name);
        const int code = function(args...);
        if (code == 0) return {};
        return failed_call(name, error_string_ != nullptr ? error_string_(code) : nullptr, code);
    }

private:
    const Library& library_;
    ErrorString* error_string_;
};

template <class T>
void put_answer(Json& out, const char* field, const T& value, const std::string& why_not) {
    put(out, field, why_not.empty() ? std::optional(value) : std::nullopt, why_not);
}

void put_nvlinks(const Api& api, Device device, Json& out) {
    unsigned active_links = 0, generation = 0, known = 0;
    std::string why_not, no_version = "no NVLink is active";
    for (unsigned link = 0; link < max_nvlinks; ++link) {
        unsigned active = 0, version = 0;
        const std::string unknown = api.ask<LinkUnsigned>("nvmlDeviceGetNvLinkState", device, link, &active);
        if (why_not.empty()) why_not = unknown;
        if (!unknown.empty()) continue;
        ++known;
        if (active == 0) continue;
        ++active_links;
        no_version = api.ask<LinkUnsigned>("nvmlDeviceGetNvLinkVersion", device, link, &version);
        if (!no_version.empty()) continue;
        if (version == 0 || version >= std::size(nvlink_generations)) {
            no_version = fmt::format("NVML gives {}, which is no version known here", version);
        } else {
            generation = std::max(generation, nvlink_generations[version]);
        }
    }
    put(out, "nvlinks_active", known > 0 ? std::optional(active_links) : std::nullopt, why_not);
    put(out, "nvlink_version", generation > 0 ? std::optional(generation) : std::nullopt, no_version);
}

Json describe(const Api& api, Device device) {
    Json out;
    char name[name_bytes] = "";
    std::string why_not = api.ask<DeviceText>("nvmlDeviceGetName", device, name, name_bytes);
    put_answer(out, "name", std::string(name, ::strnlen(name, sizeof name)), why_not);
    Memory memory{};
    why_not = api.ask<DeviceMemory>("nvmlDeviceGetMemoryInfo", device, &memory);
    put_answer(out, "memory_total_bytes", memory.total, why_not);
    put_answer(out, "memory_free_bytes", memory.free, why_not);
    int major = 0, minor = 0;
    why_not = api.ask<DeviceCapability>("nvmlDeviceGetCudaComputeCapability", device, &major, &minor);
    put_answer(out, "compute_capability", fmt::format("{}.{}", major, minor), why_not);
    PciInfo pci{};
    why_not = api.ask<DevicePci>("nvmlDeviceGetPciInfo_v3", device, &pci);
    put_answer(out, "pci_bus_id",
               pci_bus_id({pci.bus_id_legacy, ::strnlen(pci.bus_id_legacy, sizeof pci.bus_id_legacy)}), why_not);
    for (const auto& [field, function] :
         {std::pair{"ecc_enabled", "nvmlDeviceGetEccMode"}, {"mig_enabled", "nvmlDeviceGetMigMode"}}) {
        unsigned current = 0, pending = 0;
        why_not = api.ask<DeviceMode>(function, device, &current, &pending);
        put_answer(out, field, current != 0, why_not);
    }
    // The best that device and slot can do together, and what the link has come down to.
    for (const auto& [field, function] : {std::pair{"pcie_generation", "nvmlDeviceGetMaxPcieLinkGeneration"},
                                          {"pcie_lanes", "nvmlDeviceGetMaxPcieLinkWidth"},
                                          {"pcie_generation_now", "nvmlDeviceGetCurrPcieLinkGeneration"},
                                          {"pcie_lanes_now", "nvmlDeviceGetCurrPcieLinkWidth"}}) {
        unsigned value = 0;
        why_not = api.ask<DeviceUnsigned>(function, device, &value);
        if (why_not.empty() && value == 0) why_not = fmt::format("{} gives 0", function);
        put_answer(out, field, value, why_not);
    }
    put_nvlinks(api, device, out);
    for (const auto& [field, function] :
         {std::pair{"power_limit_w", "nvmlDeviceGetEnforcedPowerLimit"}, {"power_w", "nvmlDeviceGetPowerUsage"}}) {
        unsigned milliwatts = 0;
        why_not = api.ask<DeviceUnsigned>(function, device, &milliwatts);
        if (why_not.empty() && milliwatts == 0) why_not = fmt::format("{} gives 0", function);
        put_answer(out, field, milliwatts / 1e3, why_not);
    }
    unsigned long long millijoules = 0;  // since the driver was loaded
    why_not = api.ask<DeviceCounter>("nvmlDeviceGetTotalEnergyConsumption", device, &millijoules);
    out["energy_counter"] = why_not.empty();
    if (why_not.empty() && millijoules == 0) why_not = "the counter is at 0";
    put_answer(out, "energy_j", static_cast<double>(millijoules) / 1e3, why_not);
    return out;
}

}  // namespace

Json nvml_devices() {
    const Library library({"libnvidia-ml.so.1"});
    if (!library.loaded()) return unknown_devices("no NVIDIA driver: " + library.error());
    const Api api(library);
    if (const std::string why_not = api.ask<Init>("nvmlInit_v2"); !why_not.empty()) return unknown_devices(why_not);
    Json side;
    char version[version_bytes] = "";
    std::string why_not = api.ask<SystemText>("nvmlSystemGetDriverVersion", version, version_bytes);
    put_answer(side, "driver_version", std::string(version, ::strnlen(version, sizeof version)), why_not);
    int cuda = 0;
    why_not = api.ask<SystemInteger>("nvmlSystemGetCudaDriverVersion_v2", &cuda);
    put_answer(side, "cuda_version", cuda_version_text(cuda), why_not);
    unsigned count = 0;
    why_not = api.ask<DeviceCount>("nvmlDeviceGetCount_v2", &count);
    put_answer(side, "devices", Json::array(), why_not);
    for (unsigned index = 0; index < count && why_not.empty(); ++index) {
        Device device = nullptr;
        const std::string lost = api.ask<DeviceByIndex>("nvmlDeviceGetHandleByIndex_v2", index, &device);
        Json entry;
        put_unknown(entry, "name", lost);
        side["devices"].push_back(lost.empty() ? describe(api, device) : entry);
    }
    return side;
}

}  // namespace hetero::hw
