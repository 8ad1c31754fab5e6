#include "common/devices.h"

#include "kernels/api/ops.h"

namespace hetero::tool {

void add_device_options(OptionTable& table, DeviceOptions& options) {
    table
        .text("--device", "DEVICE", &options.name,
              "where to compute: auto, cpu, cuda or cuda:N, the N-th GPU counted from 0")
        .setting = true;
    table.size("--device-memory", "SIZE", &options.memory_bytes, "memory of a GPU that may be taken; 0: what is free")
        .setting = true;
}

void note_cpu(Tool& tool, const std::string& reason) {
    tool.note("device: CPU ({}){}", kernels::ops().name, reason.empty() ? "" : "; " + reason);
}

Status check_device(Tool& tool, DeviceOptions& options) {
    if (const char* reason = kernels::backend_error()) return fail(Errc::resource, "{}", reason);
    if (!options.is_auto()) {
        auto device = engine::find_device(options.name);
        if (!device) return fail_with(device.error(), "--device");
        options.found = *device;
    } else {
        const engine::AutoDevice best = engine::best_device();
        options.found = best.device;
        if (tool.options().given("device")) {
            if (best.device.ops == nullptr) {
                note_cpu(tool, best.reason);
            } else {
                tool.note("device: {}", engine::device_name(best.device));
            }
        }
    }
    options.found.memory_bytes = options.memory_bytes;
    return {};
}

}  // namespace hetero::tool
