// Model and instruction sets as the kernel reports them (an instruction set that the operating system has not enabled
// is not listed there), and how many CPUs this process may use.
#include <algorithm>
#include <array>

#include "hw/probes/probes.h"
#include "kernels/api/ops.h"

namespace hetero::hw {
namespace {

// Instruction sets that matter for the kernels; names as in /proc/cpuinfo.
constexpr std::array known_isa{
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
    // Arm
    "asimd", "asimdhp", "asimddp", "asimdfhm", "bf16", "i8mm", "sve", "sve2", "svei8mm", "svebf16", "sme"};

}  // namespace

Json probe_cpu(const Context& context) {
    Json section;
    const auto cpuinfo = read_text(context.path("/proc/cpuinfo"));
    const std::string text = cpuinfo.value_or("");
    const std::string reason = cpuinfo ? "not in /proc/cpuinfo" : "/proc/cpuinfo cannot be read";
    auto model = line_value(text, "model name");
    if (!model) model = line_value(text, "CPU part");
    put(section, "model", model, reason);
    auto vendor = line_value(text, "vendor_id");
    if (!vendor) vendor = line_value(text, "CPU implementer");
    put(section, "vendor", vendor, reason);

    auto flags = line_value(text, "flags");
    if (!flags) flags = line_value(text, "Features");
    if (flags) {
        const auto present = split_words(*flags);
        Json isa = Json::array();
        for (const char* name : known_isa) {
            if (std::find(present.begin(), present.end(), name) != present.end()) isa.push_back(name);
        }
        section["isa"] = isa;
        section["virtual_machine"] = std::find(present.begin(), present.end(), "hypervisor") != present.end();
    } else {
        put_unknown(section, "isa", reason);
        put_unknown(section, "virtual_machine", reason);
    }

    const SystemLimits& limits = context.limits;
    put(section, "cpus_online", limits.cpus_online > 0 ? std::optional(limits.cpus_online) : std::nullopt, reason);
    put(section, "cpus_allowed", limits.cpus_allowed > 0 ? std::optional(limits.cpus_allowed) : std::nullopt,
        "no affinity mask");
    put(section, "cpu_quota_cpus", limits.cpu_quota, "no cgroup limits CPU time");
    section["threads_default"] = limits.threads();

    if (context.recorded()) {
        put_unknown(section, "kernel_backend", not_recorded);
    } else {
        section["kernel_backend"] = kernels::ops().name;
    }
    return section;
}

}  // namespace hetero::hw
