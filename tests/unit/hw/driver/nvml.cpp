// Stands in for libnvidia-ml.so.1 where there is no driver: three devices, one that answers everything, one that
// answers what it must, one that is lost. NVML_SAYS=no: it does not start.
#include "hw/probes/nvml.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

using namespace hetero::hw::nvml;

enum : int { ok = 0, invalid_argument = 2, not_supported = 3, driver_not_loaded = 9, lost = 15 };

bool is_whole(Device device) { return device == reinterpret_cast<Device>(std::uintptr_t{1}); }

int text(const char* from, char* to, unsigned bytes) {
    if (std::strlen(from) >= bytes) return 7;
    std::memcpy(to, from, std::strlen(from) + 1);
    return ok;
}
int whole(Device device, unsigned from, unsigned* to) {
    if (!is_whole(device)) return not_supported;
    *to = from;
    return ok;
}

}  // namespace

extern "C" {

Init nvmlInit_v2;
int nvmlInit_v2() {
    const char* says = std::getenv("NVML_SAYS");
    return says != nullptr && std::string(says) == "no" ? driver_not_loaded : ok;
}
ErrorString nvmlErrorString;
const char* nvmlErrorString(int result) {
    return result == not_supported ? "Not Supported" : result == lost ? "GPU is lost" : "Driver Not Loaded";
}
SystemText nvmlSystemGetDriverVersion;
int nvmlSystemGetDriverVersion(char* to, unsigned bytes) { return text("580.65.06", to, bytes); }
SystemInteger nvmlSystemGetCudaDriverVersion_v2;
int nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = 13020, ok; }
DeviceCount nvmlDeviceGetCount_v2;
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = 3, ok; }
DeviceByIndex nvmlDeviceGetHandleByIndex_v2;
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
    *device = reinterpret_cast<Device>(std::uintptr_t{index} + 1);
    return index < 2 ? ok : lost;
}
DeviceText nvmlDeviceGetName;
int nvmlDeviceGetName(Device device, char* to, unsigned bytes) {
    return text(is_whole(device) ? "NVIDIA H100 80GB HBM3" : "NVIDIA T4", to, bytes);
}
DeviceMemory nvmlDeviceGetMemoryInfo;
int nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
    if (!is_whole(device)) return not_supported;
    *memory = {85520809984, 84000000000, 1520809984};
    return ok;
}
DeviceCapability nvmlDeviceGetCudaComputeCapability;
int nvmlDeviceGetCudaComputeCapability(Device device, int* major, int* minor) {
    *major = is_whole(device) ? 9 : 7;
    *minor = is_whole(device) ? 0 : 5;
    return ok;
}
DevicePci nvmlDeviceGetPciInfo_v3;
int nvmlDeviceGetPciInfo_v3(Device device, PciInfo* pci) {
    return text(is_whole(device) ? "0000:3B:00.0" : "0000:AF:00.0", pci->bus_id_legacy, sizeof pci->bus_id_legacy);
}
DeviceMode nvmlDeviceGetEccMode;
int nvmlDeviceGetEccMode(Device device, unsigned* current, unsigned* pending) {
    *pending = 0;
    return whole(device, 1, current);
}
DeviceMode nvmlDeviceGetMigMode;
int nvmlDeviceGetMigMode(Device device, unsigned* current, unsigned* pending) {
    *pending = 1;
    return whole(device, 0, current);
}
DeviceUnsigned nvmlDeviceGetMaxPcieLinkGeneration;
int nvmlDeviceGetMaxPcieLinkGeneration(Device, unsigned* value) { return *value = 5, ok; }
DeviceUnsigned nvmlDeviceGetMaxPcieLinkWidth;
int nvmlDeviceGetMaxPcieLinkWidth(Device, unsigned* value) { return *value = 16, ok; }
DeviceUnsigned nvmlDeviceGetCurrPcieLinkGeneration;
int nvmlDeviceGetCurrPcieLinkGeneration(Device device, unsigned* value) { return whole(device, 4, value); }
// Without nvmlDeviceGetCurrPcieLinkWidth, as an old library.
LinkUnsigned nvmlDeviceGetNvLinkState;
int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned* active) {
    if (link >= 18) return invalid_argument;
    return whole(device, link % 2, active);
}
LinkUnsigned nvmlDeviceGetNvLinkVersion;
int nvmlDeviceGetNvLinkVersion(Device device, unsigned, unsigned* version) { return whole(device, 6, version); }
DeviceUnsigned nvmlDeviceGetEnforcedPowerLimit;
int nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned* value) { return whole(device, 700'000, value); }
DeviceUnsigned nvmlDeviceGetPowerUsage;
int nvmlDeviceGetPowerUsage(Device, unsigned* value) { return *value = 0, ok; }
DeviceCounter nvmlDeviceGetTotalEnergyConsumption;
int nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long* millijoules) {
    *millijoules = 1'234'500;
    return is_whole(device) ? ok : not_supported;
}
}
