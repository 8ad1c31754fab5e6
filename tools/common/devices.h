// The device that a tool was asked to compute on.
#pragma once
#include <cstdint>
#include <string>

#include "common/tool.h"
#include "engine/device/device.h"

namespace hetero::tool {

struct DeviceOptions {
    std::string name = "auto";
    std::uint64_t memory_bytes = 0;  // 0: what is free
    engine::Device found = {};       // by check_device()
    std::string why_cpu = {};        // by check_device(): where "auto" found no other
    [[nodiscard]] bool is_auto() const { return name == "auto"; }
};
void add_device_options(OptionTable& table, DeviceOptions& options);

// Finds the device: refuses one that is not there, and a kernel backend (HETERO_BACKEND) that cannot run here.
Status check_device(DeviceOptions& options);
// The device that the work is on: says on stderr what "auto" came to where the user asked for it, of the CPU why.
void note_device(Tool& tool, const DeviceOptions& options, const engine::Device& used, const std::string& why_cpu);
// That "auto" comes to the CPU after all, and why.
void note_cpu(Tool& tool, const std::string& reason);

}  // namespace hetero::tool
