#include <cstring>

#include "hw/probes/cuda_driver.h"
#include "hw/probes/gpu_copies.h"
#include "hw/probes/gpu_drivers.h"
#include "hw/probes/gpu_rates.h"

namespace hetero::hw {
namespace {

using namespace cuda;

constexpr const char* library_name = "libcuda.so.1";
constexpr const char* not_reported = "CUDA does not report it";

// Empty where the library is fit for use.
std::string start(const Library& library) {
    if (!library.loaded()) return "no NVIDIA driver: " + library.error();
    auto* init = library.symbol<Init>("cuInit");
    if (init == nullptr) return "libcuda.so.1 lacks its functions";
    const int code = init(0);
    if (code == 0) return {};
    if (code == stub_library) return "only the toolkit's stub of libcuda is found, not the driver's library";
    const char* text = nullptr;
    if (auto* error_string = library.symbol<GetErrorString>("cuGetErrorString")) error_string(code, &text);
    return failed_call("cuInit", text, code);
}

Json not_run(const char* key, std::initializer_list<const char*> types, const std::string& reason) {
    Json rates = Json::array();
    for (const char* type : types) rates.push_back(unsupported(Json{{key, type}}, reason));
    return Json{{"rates", rates}};
}

void put_no_kernels(Json& out, const std::string& why_not) {
    out["compute"] = not_run("dtype", {"f32", "f16", "bf16", "fp8_e4m3fn", "int8", "int4"}, why_not);
    out["attention"] = not_run("kv_dtype", {"f16", "int8", "int4"}, why_not);
}

}  // namespace

std::string pci_bus_id(std::string text) {
    for (char& c : text)
        if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
    return text;
}

Json cuda_devices() {
    const Library library({library_name});
    if (const std::string why_not = start(library); !why_not.empty()) return unknown_devices(why_not);
    auto* driver_version = library.symbol<DriverGetVersion>("cuDriverGetVersion");
    auto* device_count = library.symbol<DeviceGetCount>("cuDeviceGetCount");
    auto* device_get = library.symbol<DeviceGet>("cuDeviceGet");
    auto* device_name = library.symbol<DeviceGetName>("cuDeviceGetName");
    auto* total_memory = library.symbol<DeviceTotalMem>("cuDeviceTotalMem_v2");
    auto* attribute = library.symbol<DeviceGetAttribute>("cuDeviceGetAttribute");
    auto* bus_id = library.symbol<DeviceGetPciBusId>("cuDeviceGetPCIBusId");
    if (!driver_version || !device_count || !device_get || !device_name || !total_memory || !attribute || !bus_id)
        return unknown_devices("libcuda.so.1 lacks its functions");
    Json side;
    int version = 0;
    put(side, "cuda_version", driver_version(&version) == 0 ? std::optional(cuda_version_text(version)) : std::nullopt,
        not_reported);
    int count = 0;
    if (const int code = device_count(&count); code != 0) {
        put_unknown(side, "devices", failed_call("cuDeviceGetCount", nullptr, code));
        return side;
    }
    side["devices"] = Json::array();
    for (int index = 0; index < count; ++index) {
        int device = 0;
        Json out;
        if (const int code = device_get(&device, index); code != 0) {
            put_unknown(out, "name", failed_call("cuDeviceGet", nullptr, code));
            side["devices"].push_back(out);
            continue;
        }
        char name[256] = "";
        put(out, "name", device_name(name, sizeof name, device) == 0 ? std::optional(std::string(name)) : std::nullopt,
            not_reported);
        std::size_t bytes = 0;
        put(out, "memory_total_bytes", total_memory(&bytes, device) == 0 ? std::optional(bytes) : std::nullopt,
            not_reported);
        const auto get = [&](Attribute what) {
            int value = 0;
            return attribute(&value, what, device) == 0 ? std::optional(value) : std::nullopt;
        };
        const auto major = get(capability_major), minor = get(capability_minor);
        put(out, "compute_capability",
            major && minor ? std::optional(fmt::format("{}.{}", *major, *minor)) : std::nullopt, not_reported);
        put(out, "multiprocessors", get(multiprocessor_count), not_reported);
        put(out, "l2_cache_bytes", get(l2_cache_bytes), not_reported);
        char id[32] = "";
        put(out, "pci_bus_id", bus_id(id, sizeof id, device) == 0 ? std::optional(pci_bus_id(id)) : std::nullopt,
            not_reported);
        side["devices"].push_back(out);
    }
    return side;
}

Json no_cuda_rates(const std::string& why_not) {
    Json out;
    put_no_copies(out, why_not);
    put_no_kernels(out, why_not);
    return out;
}

Json cuda_rates(const Context& context, int index) {
    const Library library({library_name});
    if (const std::string why_not = start(library); !why_not.empty()) return no_cuda_rates(why_not);
    Json out;
    int device = 0;
    auto* device_get = library.symbol<DeviceGet>("cuDeviceGet");
    if (device_get == nullptr || device_get(&device, index) != 0)
        return no_cuda_rates("the device does not answer any more");
    const double budget_s = context.options.seconds_each / 8;
    put_copies(library, device, budget_s, out);
    const char* why_not = nullptr;
    if (const kernels::DeviceOps* ops = kernels::cuda_ops(&why_not)) {
        put_gpu_rates(*ops, index, budget_s, {}, out);
    } else {
        put_no_kernels(out, why_not);
    }
    return out;
}

}  // namespace hetero::hw
