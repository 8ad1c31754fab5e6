#include "hw/probes/gpu_copies.h"

#include <cstring>

#include "hw/probes/cuda_driver.h"
#include "hw/probes/timing.h"

namespace hetero::hw {
namespace {

using namespace hetero::hw::cuda;

constexpr std::size_t copy_bytes = 64U << 20;

struct Field {
    const char *section, *name;
};
constexpr Field fields[] = {{"copies", "host_to_device_gb_per_s"},
                            {"copies", "device_to_host_gb_per_s"},
                            {"copies", "pageable_host_to_device_gb_per_s"},
                            {"copies", "pageable_device_to_host_gb_per_s"},
                            {"memory_bandwidth", "copy_gb_per_s"}};

}  // namespace

void put_no_copies(Json& out, const std::string& why_not) {
    for (const auto& [section, name] : fields) put_unknown(out[section], name, why_not);
}

void put_copies(const Library& driver, int device, double budget_s, Json& out) {
    auto* retain = driver.symbol<DevicePrimaryCtxRetain>("cuDevicePrimaryCtxRetain");
    auto* set_current = driver.symbol<CtxSetCurrent>("cuCtxSetCurrent");
    auto* synchronize = driver.symbol<CtxSynchronize>("cuCtxSynchronize");
    auto* allocate = driver.symbol<MemAlloc>("cuMemAlloc_v2");
    auto* allocate_host = driver.symbol<MemHostAlloc>("cuMemHostAlloc");
    auto* to_device = driver.symbol<MemcpyHtoD>("cuMemcpyHtoD_v2");
    auto* to_host = driver.symbol<MemcpyDtoH>("cuMemcpyDtoH_v2");
    auto* within = driver.symbol<MemcpyDtoD>("cuMemcpyDtoD_v2");
    if (!retain || !set_current || !synchronize || !allocate || !allocate_host || !to_device || !to_host || !within)
        return put_no_copies(out, "libcuda.so.1 lacks its functions");
    DeviceContext context = nullptr;
    Pointer a = 0, b = 0;
    void* pinned = nullptr;
    if (const int code = retain(&context, device); code != 0 || set_current(context) != 0)
        return put_no_copies(out, fmt::format("no context on the device: error {}", code));
    if (allocate(&a, copy_bytes) != 0 || allocate(&b, copy_bytes) != 0 || allocate_host(&pinned, copy_bytes, 0) != 0)
        return put_no_copies(out, "too little memory on the device, or too little that may be pinned");
    const Aligned<std::byte> pageable(copy_bytes);
    std::memset(pageable.data(), 1, copy_bytes);
    std::memset(pinned, 2, copy_bytes);

    const auto put_rate = [&](const Field& field, double bytes, auto copy) {
        bool sound = copy() == 0 && synchronize() == 0;  // the first one warms up
        const double seconds = best_seconds(budget_s, [&] { sound = sound && copy() == 0 && synchronize() == 0; });
        put(out[field.section], field.name, sound ? std::optional(rounded(bytes / 1e9 / seconds)) : std::nullopt,
            "the copy fails");
    };
    constexpr auto bytes = static_cast<double>(copy_bytes);
    put_rate(fields[0], bytes, [&] { return to_device(a, pinned, copy_bytes); });
    put_rate(fields[1], bytes, [&] { return to_host(pinned, a, copy_bytes); });
    put_rate(fields[2], bytes, [&] { return to_device(b, pageable.data(), copy_bytes); });
    put_rate(fields[3], bytes, [&] { return to_host(pageable.data(), a, copy_bytes); });
    put_rate(fields[4], 2 * bytes, [&] { return within(b, a, copy_bytes); });
    // What came back through the device is what was sent to it.
    if (std::memcmp(pageable.data(), pinned, copy_bytes) != 0 || static_cast<const char*>(pinned)[0] != 2)
        return put_no_copies(out, "what comes back from the device differs from what was sent");
    out["copies"]["method"] = fmt::format("{} bytes at a time, one direction at a time; best copy", copy_bytes);
    out["memory_bandwidth"]["method"] =
        fmt::format("copies of {} bytes within the device, read and written", copy_bytes);
}

}  // namespace hetero::hw
