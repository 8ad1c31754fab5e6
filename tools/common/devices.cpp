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

void note_device(Tool& tool, const DeviceOptions& options, const engine::Device& used, const std::string& why_cpu) {
    if (!options.is_auto() || !tool.options().given("device")) return;
    if (used.ops != nullptr) return tool.note("device: {}", engine::device_name(used));
    note_cpu(tool, why_cpu);
}

Status check_device(DeviceOptions& options) {
    if (const char* reason = kernels::backend_error()) return fail(Errc::resource, "{}", reason);
    if (!options.is_auto()) {
        auto device = engine::find_device(options.name);
        if (!device) return fail_with(device.error(), "--device");
        options.found = *device;
    } else {
        const engine::AutoDevice best = engine::best_device();
        options.found = best.device;
        options.why_cpu = best.reason;
    }
    options.found.memory_bytes = options.memory_bytes;
    return {};
}

}  // namespace hetero::tool
