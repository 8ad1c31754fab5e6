// NVIDIA GPUs, as NVML sees them (all of the machine) and as CUDA does (those this process may use). Both libraries
// come with the driver and are looked for at run time; the declarations below are of their stable C interfaces
// (https://docs.nvidia.com/deploy/nvml-api, https://docs.nvidia.com/cuda/cuda-driver-api).
#include <algorithm>
#include <cstring>

#include "hw/isolated.h"
#include "hw/probes/cuda_driver.h"
#include "hw/probes/gpu_copies.h"
#include "hw/probes/gpu_rates.h"
#include "hw/probes/probes.h"

namespace hetero::hw {
namespace {

constexpr double driver_timeout_s = 20;

// What a library said, in words, of the call that failed.
std::string failed(const char* call, const char* text, int code) {
    return text != nullptr ? fmt::format("{}: {} ({})", call, text, code) : fmt::format("{}: error {}", call, code);
}

Json unknown_side(const std::string& reason) {
    Json side;
    put_unknown(side, "devices", reason);
    return side;
}

std::string cuda_version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

namespace nvml {

using Device = void*;
struct Memory {
    unsigned long long total, free, used;
};

struct PciInfo {
    char bus_id_legacy[16];  // "0000:17:00.0", as CUDA has it
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct Api {
    explicit Api(const Library& lib)
        : init(lib.symbol<int()>("nvmlInit_v2")),
          error_string(lib.symbol<const char*(int)>("nvmlErrorString")),
          driver_version(lib.symbol<int(char*, unsigned)>("nvmlSystemGetDriverVersion")),
          cuda_version(lib.symbol<int(int*)>("nvmlSystemGetCudaDriverVersion_v2")),
          count(lib.symbol<int(unsigned*)>("nvmlDeviceGetCount_v2")),
          by_index(lib.symbol<int(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2")),
          name(lib.symbol<int(Device, char*, unsigned)>("nvmlDeviceGetName")),
          memory(lib.symbol<int(Device, Memory*)>("nvmlDeviceGetMemoryInfo")),
          capability(lib.symbol<int(Device, int*, int*)>("nvmlDeviceGetCudaComputeCapability")),
          mig_mode(lib.symbol<int(Device, unsigned*, unsigned*)>("nvmlDeviceGetMigMode")),
          pcie_generation(lib.symbol<int(Device, unsigned*)>("nvmlDeviceGetMaxPcieLinkGeneration")),
          pcie_width(lib.symbol<int(Device, unsigned*)>("nvmlDeviceGetMaxPcieLinkWidth")),
          power_limit(lib.symbol<int(Device, unsigned*)>("nvmlDeviceGetEnforcedPowerLimit")),
          pci_info(lib.symbol<int(Device, PciInfo*)>("nvmlDeviceGetPciInfo_v3")),
          ecc_mode(lib.symbol<int(Device, unsigned*, unsigned*)>("nvmlDeviceGetEccMode")),
          pcie_generation_now(lib.symbol<int(Device, unsigned*)>("nvmlDeviceGetCurrPcieLinkGeneration")),
          pcie_width_now(lib.symbol<int(Device, unsigned*)>("nvmlDeviceGetCurrPcieLinkWidth")),
          nvlink_state(lib.symbol<int(Device, unsigned, unsigned*)>("nvmlDeviceGetNvLinkState")),
          nvlink_version(lib.symbol<int(Device, unsigned, unsigned*)>("nvmlDeviceGetNvLinkVersion")),
          power_usage(lib.symbol<int(Device, unsigned*)>("nvmlDeviceGetPowerUsage")),
          energy(lib.symbol<int(Device, unsigned long long*)>("nvmlDeviceGetTotalEnergyConsumption")) {}
    [[nodiscard]] std::string reason(const char* call, int code) const {
        return failed(call, error_string != nullptr ? error_string(code) : nullptr, code);
    }

    int (*init)();
    const char* (*error_string)(int);
    int (*driver_version)(char*, unsigned);
    int (*cuda_version)(int*);
    int (*count)(unsigned*);
    int (*by_index)(unsigned, Device*);
    int (*name)(Device, char*, unsigned);
    int (*memory)(Device, Memory*);
    int (*capability)(Device, int*, int*);
    int (*mig_mode)(Device, unsigned*, unsigned*);
    int (*pcie_generation)(Device, unsigned*);
    int (*pcie_width)(Device, unsigned*);
    int (*power_limit)(Device, unsigned*);
    int (*pci_info)(Device, PciInfo*);
    int (*ecc_mode)(Device, unsigned*, unsigned*);
    int (*pcie_generation_now)(Device, unsigned*);
    int (*pcie_width_now)(Device, unsigned*);
    int (*nvlink_state)(Device, unsigned, unsigned*);
    int (*nvlink_version)(Device, unsigned, unsigned*);
    int (*power_usage)(Device, unsigned*);
    int (*energy)(Device, unsigned long long*);
};

// Calls an optional function; what it wrote, or nothing.
template <class Function, class... Args>
bool ok(Function* function, Args... args) {
    return function != nullptr && function(args...) == 0;
}

void put_nvlinks(const Api& api, Device device, Json& out) {
    constexpr unsigned max_links = 18;  // NVML_NVLINK_MAX_LINKS
    unsigned active_links = 0, version = 0, known = 0;
    for (unsigned link = 0; link < max_links; ++link) {
        unsigned active = 0, of_link = 0;
        if (!ok(api.nvlink_state, device, link, &active)) continue;
        ++known;
        if (active == 0) continue;
        ++active_links;
        if (ok(api.nvlink_version, device, link, &of_link)) version = std::max(version, of_link);
    }
    put(out, "nvlinks_active", known > 0 ? std::optional(active_links) : std::nullopt, "the device has no NVLink");
    put(out, "nvlink_version", version > 0 ? std::optional(version) : std::nullopt,
        active_links > 0 ? "NVML does not report it" : "no NVLink is active");
}

Json describe(const Api& api, Device device) {
    Json out;
    const std::string reason = "NVML does not report it";
    char name[96] = "";
    put(out, "name",
        ok(api.name, device, name, unsigned{sizeof name}) ? std::optional(std::string(name)) : std::nullopt, reason);
    Memory memory{};
    const bool has_memory = ok(api.memory, device, &memory);
    put(out, "memory_total_bytes", has_memory ? std::optional(memory.total) : std::nullopt, reason);
    put(out, "memory_free_bytes", has_memory ? std::optional(memory.free) : std::nullopt, reason);
    int major = 0, minor = 0;
    put(out, "compute_capability",
        ok(api.capability, device, &major, &minor) ? std::optional(fmt::format("{}.{}", major, minor)) : std::nullopt,
        reason);
    PciInfo pci{};
    put(out, "pci_bus_id",
        ok(api.pci_info, device, &pci) ? std::optional(std::string(pci.bus_id_legacy, ::strnlen(pci.bus_id_legacy, 16)))
                                       : std::nullopt,
        reason);
    unsigned current = 0, pending = 0;
    put(out, "ecc_enabled", ok(api.ecc_mode, device, &current, &pending) ? std::optional(current != 0) : std::nullopt,
        "the device has no ECC");
    put(out, "mig_enabled", ok(api.mig_mode, device, &current, &pending) ? std::optional(current != 0) : std::nullopt,
        "the device has no MIG");
    unsigned value = 0;
    put(out, "pcie_generation", ok(api.pcie_generation, device, &value) ? std::optional(value) : std::nullopt, reason);
    put(out, "pcie_lanes", ok(api.pcie_width, device, &value) ? std::optional(value) : std::nullopt, reason);
    put(out, "power_limit_w", ok(api.power_limit, device, &value) ? std::optional(value / 1000.0) : std::nullopt,
        reason);
    put(out, "pcie_generation_now", ok(api.pcie_generation_now, device, &value) ? std::optional(value) : std::nullopt,
        reason);
    put(out, "pcie_lanes_now", ok(api.pcie_width_now, device, &value) ? std::optional(value) : std::nullopt, reason);
    put_nvlinks(api, device, out);
    put(out, "power_w", ok(api.power_usage, device, &value) && value > 0 ? std::optional(value / 1000.0) : std::nullopt,
        reason);
    unsigned long long millijoules = 0;
    out["energy_counter"] = ok(api.energy, device, &millijoules);
    put(out, "energy_j", millijoules > 0 ? std::optional(static_cast<double>(millijoules) / 1000) : std::nullopt,
        reason);
    return out;
}

Json probe(const Context&) {
    const Library lib({"libnvidia-ml.so.1"});
    if (!lib.loaded()) return unknown_side("no NVIDIA driver: " + lib.error());
    const Api api(lib);
    if (api.init == nullptr || api.count == nullptr || api.by_index == nullptr)
        return unknown_side("libnvidia-ml.so.1 lacks its functions");
    if (const int code = api.init(); code != 0) return unknown_side(api.reason("nvmlInit", code));
    Json side;
    char version[96] = "";
    put(side, "driver_version",
        ok(api.driver_version, version, unsigned{sizeof version}) ? std::optional(std::string(version)) : std::nullopt,
        "NVML does not report it");
    int cuda = 0;
    put(side, "cuda_version", ok(api.cuda_version, &cuda) ? std::optional(cuda_version_text(cuda)) : std::nullopt,
        "NVML does not report it");
    unsigned count = 0;
    if (const int code = api.count(&count); code != 0) {
        put_unknown(side, "devices", api.reason("nvmlDeviceGetCount", code));
        return side;
    }
    side["devices"] = Json::array();
    for (unsigned index = 0; index < count; ++index) {
        Device device = nullptr;
        if (api.by_index(index, &device) == 0) side["devices"].push_back(describe(api, device));
    }
    return side;
}

}  // namespace nvml

namespace cuda_driver {

using namespace hetero::hw::cuda;

Json not_run(const char* key, std::initializer_list<const char*> types, const char* reason) {
    Json rates = Json::array();
    for (const char* type : types) rates.push_back(unsupported(Json{{key, type}}, reason));
    return Json{{"rates", rates}};
}

Json probe(const Context& context) {
    const Library lib({"libcuda.so.1"});
    if (!lib.loaded()) return unknown_side("no NVIDIA driver: " + lib.error());
    auto* init = lib.symbol<Init>("cuInit");
    auto* error_string = lib.symbol<GetErrorString>("cuGetErrorString");
    auto* driver_version = lib.symbol<DriverGetVersion>("cuDriverGetVersion");
    auto* device_count = lib.symbol<DeviceGetCount>("cuDeviceGetCount");
    auto* device_get = lib.symbol<DeviceGet>("cuDeviceGet");
    auto* device_name = lib.symbol<DeviceGetName>("cuDeviceGetName");
    auto* total_memory = lib.symbol<DeviceTotalMem>("cuDeviceTotalMem_v2");
    auto* attribute = lib.symbol<DeviceGetAttribute>("cuDeviceGetAttribute");
    auto* pci_bus_id = lib.symbol<DeviceGetPciBusId>("cuDeviceGetPCIBusId");
    if (!init || !device_count || !device_get || !device_name || !total_memory || !attribute) {
        return unknown_side("libcuda.so.1 lacks its functions");
    }
    auto reason = [&](const char* call, int code) {
        const char* text = nullptr;
        if (error_string != nullptr) error_string(code, &text);
        return failed(call, text, code);
    };
    if (const int code = init(0); code != 0) {
        if (code == stub_library)
            return unknown_side("only the toolkit's stub of libcuda is found, not the driver's library");
        return unknown_side(reason("cuInit", code));
    }
    Json side;
    int version = 0;
    put(side, "cuda_version",
        driver_version != nullptr && driver_version(&version) == 0 ? std::optional(cuda_version_text(version))
                                                                   : std::nullopt,
        "CUDA does not report it");
    int count = 0;
    if (const int code = device_count(&count); code != 0) {
        put_unknown(side, "devices", reason("cuDeviceGetCount", code));
        return side;
    }
    side["devices"] = Json::array();
    for (int index = 0; index < count; ++index) {
        int device = 0;
        if (device_get(&device, index) != 0) continue;
        Json out;
        char name[256] = "";
        put(out, "name", device_name(name, sizeof name, device) == 0 ? std::optional(std::string(name)) : std::nullopt,
            "CUDA does not report it");
        std::size_t bytes = 0;
        put(out, "memory_total_bytes", total_memory(&bytes, device) == 0 ? std::optional(bytes) : std::nullopt,
            "CUDA does not report it");
        auto get = [&](Attribute what) {
            int value = 0;
            return attribute(&value, what, device) == 0 ? std::optional(value) : std::nullopt;
        };
        const auto major = get(capability_major), minor = get(capability_minor);
        put(out, "compute_capability",
            major && minor ? std::optional(fmt::format("{}.{}", *major, *minor)) : std::nullopt,
            "CUDA does not report it");
        put(out, "multiprocessors", get(multiprocessor_count), "CUDA does not report it");
        put(out, "l2_cache_bytes", get(l2_cache_bytes), "CUDA does not report it");
        char id[32] = "";
        put(out, "pci_bus_id",
            pci_bus_id != nullptr && pci_bus_id(id, sizeof id, device) == 0 ? std::optional(std::string(id))
                                                                            : std::nullopt,
            "CUDA does not report it");
        const bool measures = context.options.measure && !context.options.quick;
        put_copies(lib, device, measures, context.options.seconds_each / 8, out);
        const char* why_not = measures ? nullptr : not_measured;
        const kernels::DeviceOps* ops = measures ? kernels::cuda_ops(&why_not) : nullptr;
        if (ops != nullptr) {
            put_gpu_rates(*ops, index, context.options.seconds_each / 8, {}, out);
        } else {
            out["compute"] = not_run("dtype", {"f32", "f16", "bf16", "fp8_e4m3fn", "int8", "int4"}, why_not);
            out["attention"] = not_run("kv_dtype", {"f16", "int8", "int4"}, why_not);
        }
        out["kv_codecs"] = not_run("codec", {"int8", "int4"}, "KV is converted on the CPU");
        side["devices"].push_back(out);
    }
    return side;
}

}  // namespace cuda_driver

Json isolated_side(Json (*probe)(const Context&), const Context& context) {
    const auto text = run_isolated([&] { return probe(context).dump(-1, ' ', false, Json::error_handler_t::replace); },
                                   driver_timeout_s);
    if (!text) return unknown_side("the driver's library " + text.error().message);
    const Json side = Json::parse(*text, nullptr, false);
    return side.is_object() ? side : unknown_side("the driver's library gave no answer");
}

}  // namespace

Json probe_gpus(const Context& context) {
    Json section;
    section["nvml"] = context.recorded() ? unknown_side(not_recorded) : isolated_side(nvml::probe, context);
    section["cuda"] = context.recorded() ? unknown_side(not_recorded) : isolated_side(cuda_driver::probe, context);
    return section;
}

}  // namespace hetero::hw
