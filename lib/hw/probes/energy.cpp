// Energy counters of the CPU: RAPL, by the kernel's powercap interface (Documentation/power/powercap/powercap.rst).
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "hw/probes/probes.h"

namespace hetero::hw {
namespace {

std::optional<double> joules(const std::optional<std::int64_t>& microjoules) {
    return microjoules && *microjoules > 0 ? std::optional(static_cast<double>(*microjoules) * 1e-6) : std::nullopt;
}

// While this program does nothing. Nothing where the counter stands still, or begins anew meanwhile.
std::optional<double> power_w(const std::string& folder, std::int64_t before_uj) {
    const auto start = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const auto after_uj = read_integer(folder + "/energy_uj");
    const double seconds = seconds_since(start);
    if (!after_uj || *after_uj <= before_uj) return std::nullopt;
    return rounded(static_cast<double>(*after_uj - before_uj) * 1e-6 / seconds);
}

}  // namespace

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
        const auto energy_uj = read_integer(folder + "/energy_uj");
        entry["readable"] = energy_uj.has_value();
        const char* unreadable = "its counter cannot be read by this user";
        put(entry, "energy_j", joules(energy_uj), unreadable);
        put(entry, "energy_range_j", joules(read_integer(folder + "/max_energy_range_uj")), unreadable);
        if (const char* reason = context.measures_nothing()) {
            put_unknown(entry, "power_w", reason);
        } else {
            put(entry, "power_w", energy_uj ? power_w(folder, *energy_uj) : std::nullopt, unreadable);
        }
        // What the processor keeps to in the long run; of a package it is its thermal design power or below.
        put(entry, "power_limit_w", joules(read_integer(folder + "/constraint_0_power_limit_uw")),
            "the domain has no limit that can be read");
        domains.push_back(entry);
    }
    put(section, "rapl_domains", domains.empty() ? std::nullopt : std::optional(domains),
        "no RAPL domains under /sys/class/powercap");
    return section;
}

}  // namespace hetero::hw
