#include "plan/fleet.h"

#include <algorithm>
#include <cmath>

namespace hetero::plan {
namespace {

bool near(const std::optional<double>& a, const std::optional<double>& b, double tolerance) {
    if (!a || !b) return true;
    return std::max(*a, *b) <= (1 + tolerance) * std::min(*a, *b);
}

bool alike(const hw::Device& a, const hw::Device& b, double tolerance) {
    if (a.name != b.name || a.count != b.count || a.threads != b.threads ||
        a.compute_capability != b.compute_capability || a.products.size() != b.products.size())
        return false;
    const auto bytes = [](const auto& value) {
        return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
    };
    if (!near(bytes(a.memory_bytes), bytes(b.memory_bytes), tolerance)) return false;
    for (std::size_t i = 0; i < a.products.size(); ++i) {
        const hw::ProductRate &x = a.products[i], &y = b.products[i];
        if (x.dtype != y.dtype || x.weights != y.weights || x.path != y.path || x.threads != y.threads ||
            x.unsupported.empty() != y.unsupported.empty() ||
            !near(x.gemm_gflop_per_s, y.gemm_gflop_per_s, tolerance) ||
            !near(x.gemv_gb_per_s, y.gemv_gb_per_s, tolerance))
            return false;
    }
    for (std::size_t i = 0; i < std::min(a.bandwidth.size(), b.bandwidth.size()); ++i)
        if (!near(a.bandwidth[i].read_gb_per_s, b.bandwidth[i].read_gb_per_s, tolerance)) return false;
    return true;
}

bool alike(const hw::Machine& a, const hw::Machine& b, double tolerance) {
    if (a.gpus.size() != b.gpus.size() || !alike(a.cpu, b.cpu, tolerance)) return false;
    for (std::size_t i = 0; i < a.gpus.size(); ++i)
        if (!alike(a.gpus[i], b.gpus[i], tolerance)) return false;
    return true;
}

// Sum of logarithms of what both devices of alike machines do: smaller is slower.
double speed(const hw::Machine& machine) {
    double sum = 0;
    const auto add = [&](const hw::Device& device) {
        for (const hw::ProductRate& rate : device.products) {
            if (rate.gemm_gflop_per_s) sum += std::log(*rate.gemm_gflop_per_s);
            if (rate.gemv_gb_per_s) sum += std::log(*rate.gemv_gb_per_s);
        }
    };
    add(machine.cpu);
    for (const hw::Device& gpu : machine.gpus) add(gpu);
    return sum;
}

}  // namespace

std::vector<MachineKind> kinds_of(const hw::Profile& fleet, double tolerance) {
    std::vector<MachineKind> kinds;
    for (const hw::Machine& machine : fleet.machines) {
        const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const MachineKind& kind) {
            return alike(*kind.machine, machine, tolerance);
        });
        MachineKind& kind = found != kinds.end() ? *found : kinds.emplace_back();
        if (kind.machine == nullptr || speed(machine) < speed(*kind.machine)) kind.machine = &machine;
        kind.hosts.insert(kind.hosts.end(), static_cast<std::size_t>(std::max(machine.count, 1)), machine.name);
    }
    return kinds;
}

}  // namespace hetero::plan
