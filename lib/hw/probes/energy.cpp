// Energy counters of the CPU: RAPL, by the kernel's powercap interface (Documentation/power/powercap/powercap.rst).
#include "hw/probes/probes.h"

namespace hetero::hw {

Json probe_energy(const Context& context) {
    Json section;
    Json domains = Json::array();
    const std::string base = context.path("/sys/class/powercap");
    for (const std::string& name : list_folder(base)) {
        const std::string folder = base + "/" + name;
        const auto label = read_text(folder + "/name");
        if (!label || name.find(':') == std::string::npos) continue;  // "intel-rapl" itself is only the control type
        Json entry;
        entry["domain"] = name;
        entry["label"] = *label;  // "package-0", "dram"
        entry["readable"] = read_integer(folder + "/energy_uj").has_value();
        domains.push_back(entry);
    }
    put(section, "rapl_domains", domains.empty() ? std::nullopt : std::optional(domains),
        "no RAPL domains under /sys/class/powercap");
    return section;
}

}  // namespace hetero::hw
