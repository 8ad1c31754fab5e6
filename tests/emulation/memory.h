// Memory of the emulated devices.
#pragma once
#include <cstddef>

namespace hetero::emulation {

bool allocate_device(int device, std::size_t bytes, void** memory);  // false: none left
bool free_device(void* memory);                                      // false: not ours
[[nodiscard]] std::size_t used_bytes(int device);
[[nodiscard]] std::size_t device_allocations();
// Is [memory, memory + bytes) device memory, host memory, or partly beyond a device allocation?
enum class Where { host, device, partly };
[[nodiscard]] Where where(const void* memory, std::size_t bytes);
[[nodiscard]] bool canaries_whole();

// While one exists, device memory can be touched.
class DeviceAccess {
public:
    DeviceAccess();
    ~DeviceAccess();
    DeviceAccess(const DeviceAccess&) = delete;
    DeviceAccess& operator=(const DeviceAccess&) = delete;
};
void apply_strict_host();  // after it was changed

}  // namespace hetero::emulation
