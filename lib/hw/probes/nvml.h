// What is used of NVML (https://docs.nvidia.com/deploy/nvml-api), the driver's management library, which is loaded at
// run time: no header or library of it is needed to build. Where nvml.h is there, a test holds this against it.
#pragma once

namespace hetero::hw::nvml {

using Device = void*;  // nvmlDevice_t
struct Memory {        // nvmlMemory_t
    unsigned long long total, free, used;
};
struct PciInfo {             // nvmlPciInfo_t
    char bus_id_legacy[16];  // "0000:3B:00.0"
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

inline constexpr unsigned name_bytes = 96, version_bytes = 80, max_nvlinks = 36;

// nvmlNvlinkVersion_t, which nvmlDeviceGetNvLinkVersion gives, is no version but its place in a list: the generation of
// each.
inline constexpr unsigned nvlink_generations[] = {0, 1, 2, 2, 3, 3, 4, 5, 6};

// Results are ints, enumerations unsigned.
using Init = int();
using ErrorString = const char*(int result);
using SystemText = int(char* text, unsigned bytes);
using SystemInteger = int(int* value);
using DeviceCount = int(unsigned* count);
using DeviceByIndex = int(unsigned index, Device* device);
using DeviceText = int(Device device, char* text, unsigned bytes);
using DeviceMemory = int(Device device, Memory* memory);
using DeviceCapability = int(Device device, int* major, int* minor);
using DevicePci = int(Device device, PciInfo* pci);
using DeviceMode = int(Device device, unsigned* current, unsigned* pending);
using DeviceUnsigned = int(Device device, unsigned* value);
using DeviceCounter = int(Device device, unsigned long long* value);
using LinkUnsigned = int(Device device, unsigned link, unsigned* value);

}  // namespace hetero::hw::nvml
