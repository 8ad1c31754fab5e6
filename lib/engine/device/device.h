// Which device computes for a session.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hetero::kernels {
struct DeviceOps;
}

namespace hetero::engine {

struct Device {
    const kernels::DeviceOps* ops = nullptr;  // null: the CPU
    int index = 0;                            // among those that the backend counts
    std::uint64_t memory_bytes = 0;           // that a session may take of it; 0: what is free
};

// Bytes of a model's weights that are on the device, of how many.
using WeightsProgressFn = std::function<void(std::uint64_t done, std::uint64_t total)>;

// "cpu", "cuda" (the first one) or "cuda:1". Errors: usage (no name of a device); resource (no such device here, and
// why).
[[nodiscard]] Result<Device> find_device(std::string_view name);
// The device that "auto" stands for, and why it is not another: the first CUDA device, else the CPU.
struct AutoDevice {
    Device device;
    std::string reason;  // empty where nothing is missing
};
[[nodiscard]] AutoDevice best_device();

[[nodiscard]] std::string device_name(const Device& device);  // "cpu", "cuda:0"

}  // namespace hetero::engine
