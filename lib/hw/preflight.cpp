#include "hw/preflight.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"

namespace hetero::hw {
namespace {

bool is_float(const std::string& dtype) { return dtype == "f32" || dtype == "f16" || dtype == "bf16"; }

// Of the entries for `name`: null where none is there, else one with an executable path, if any.
template <class Rate>
const Rate* entry(const std::vector<Rate>& rates, std::string Rate::*key, const std::string& name) {
    const Rate* found = nullptr;
    for (const Rate& rate : rates)
        if (rate.*key == name && (found == nullptr || !found->unsupported.empty())) found = &rate;
    return found;
}

// Of a codec by its name alone, a profile may have entries with options: "int8:channel:g32:asym".
const CodecRate* codec_entry(const Device& device, const std::string& name) {
    const CodecRate* found = entry(device.codecs, &CodecRate::codec, name);
    for (const CodecRate& rate : device.codecs)
        if (found == nullptr && rate.codec.substr(0, rate.codec.find(':')) == name.substr(0, name.find(':')))
            found = &rate;
    return found;
}

Check precision(const Machine& machine, const Demand& demand) {
    Check check{"precision", Fitness::ok, "", ""};
    std::vector<const Device*> devices;
    for (const Device& gpu : machine.gpus)
        if (demand.gpu) devices.push_back(&gpu);
    const std::vector<const Device*> host{&machine.cpu};  // it converts KV, that of a GPU too
    if (!demand.gpu) devices = host;
    std::vector<std::string> runs, lacking, unknown;
    const auto look = [&](const std::string& what, const std::vector<const Device*>& where, auto find) {
        bool known = false;
        std::string reason;
        for (const Device* device : where) {
            const auto* rate = find(*device);
            if (rate == nullptr) continue;
            known = true;
            reason = rate->unsupported;
            if (reason.empty()) break;
        }
        if (known && reason.empty()) {
            runs.push_back(what);
        } else if (known) {
            lacking.push_back(fmt::format("{} ({})", what, reason));
        } else {
            unknown.push_back(what);
        }
    };
    for (const std::string& dtype : demand.dtypes)
        look(dtype + " weights", devices,
             [&](const Device& d) { return entry(d.products, &ProductRate::dtype, dtype); });
    for (const std::string& dtype : demand.kv_dtypes)
        look(dtype + " KV", devices,
             [&](const Device& d) { return entry(d.attention, &AttentionRate::kv_dtype, dtype); });
    for (const std::string& codec : demand.codecs)
        if (!is_float(codec))
            look(codec + " on the link", host, [&](const Device& d) { return codec_entry(d, codec); });
    if (demand.dtypes.empty() && demand.kv_dtypes.empty() && demand.codecs.empty()) {
        std::vector<std::string> names;
        for (const ProductRate& rate : machine.cpu.products)
            if (rate.unsupported.empty() && std::find(names.begin(), names.end(), rate.dtype) == names.end())
                names.push_back(rate.dtype);
        check.found = names.empty() ? "no product was measured" : fmt::format("CPU: {}", fmt::join(names, ", "));
        if (names.empty()) {
            check.result = Fitness::warn;
            check.remedy = "let hw-probe measure (without --describe)";
        }
        return check;
    }
    if (!lacking.empty()) {
        check.result = Fitness::fail;
        check.found = fmt::format("no executable path: {}", fmt::join(lacking, "; "));
        check.remedy = "plan anew with the profile of this machine, which lists what runs";
    } else if (!unknown.empty()) {
        check.result = Fitness::warn;
        check.found = fmt::format("not measured: {}", fmt::join(unknown, ", "));
        check.remedy = "let hw-probe measure (without --describe), or see whether this build has the kernel";
    } else {
        check.found = fmt::format("runs: {}", fmt::join(runs, ", "));
    }
    return check;
}

Check driver(const Machine& machine, const Demand& demand) {
    if (!demand.gpu) return {"driver", Fitness::ok, "no GPU is asked for", ""};
    if (machine.gpus.empty())
        return {"driver", Fitness::fail,
                machine.gpus_unknown.empty() ? "no GPU is known" : "no GPU: " + machine.gpus_unknown,
                "install the NVIDIA driver, or hand the device to the container (--gpus all, CUDA_VISIBLE_DEVICES)"};
    if (machine.driver_cuda_version.empty() || machine.cuda_version.empty())
        return {"driver", Fitness::warn,
                fmt::format("driver {}: NVML or CUDA does not say its version",
                            machine.driver_version.empty() ? "unknown" : machine.driver_version),
                "see whether nvidia-smi works, and whether libcuda.so.1 is the driver's own"};
    if (machine.driver_cuda_version != machine.cuda_version)
        return {"driver", Fitness::fail,
                fmt::format("the driver {} is for CUDA {}, but libcuda.so.1 is of {}", machine.driver_version,
                            machine.driver_cuda_version, machine.cuda_version),
                "load the kernel module that belongs to the library (reboot), or take cuda-compat out of the library "
                "path"};
    return {"driver", Fitness::ok, fmt::format("driver {}, CUDA {}", machine.driver_version, machine.cuda_version), ""};
}

Check link(const Profile& profile, const Machine& machine, const Demand& demand) {
    if (demand.peer.empty()) return {"link", Fitness::ok, "nothing is sent to another machine", ""};
    const std::string &from = demand.sends ? machine.name : demand.peer,
                      &to = demand.sends ? demand.peer : machine.name;
    const Link* best = nullptr;
    for (const Link& one : profile.links)
        if (one.from == from && one.to == to && one.gb_per_s && (best == nullptr || *one.gb_per_s > *best->gb_per_s))
            best = &one;
    const char* measure = "measure it: mpirun -n 2 hw-probe --links, one rank on each machine";
    if (best == nullptr)
        return {"link", Fitness::warn, fmt::format("no link from {} to {} is known", from, to), measure};
    const double rate = *best->gb_per_s;
    std::string found = fmt::format("{} to {}: {:.4g} GB/s", from, to, rate);
    if (demand.link_gb_per_s) {
        found += fmt::format(", KV asks for {:.3g}", *demand.link_gb_per_s);
        if (*demand.link_gb_per_s > rate)
            return {"link", Fitness::fail, found, "send fewer bits (--wire-dtype int8, int4), or plan a lower rate"};
    }
    if (demand.planned_link_gb_per_s && rate < 0.9 * *demand.planned_link_gb_per_s)
        return {"link", Fitness::warn,
                fmt::format("{}, the plan reckons with {:.3g}", found, *demand.planned_link_gb_per_s),
                "plan anew with this profile: the time to the first token will be longer"};
    if (demand.link_gb_per_s && *demand.link_gb_per_s > 0.7 * rate)
        return {"link", Fitness::warn, found, "over 70 % of the link is used: requests will wait for one another"};
    if (best->origin != Origin::measured) return {"link", Fitness::warn, found + " (specified, not measured)", measure};
    if (best->asymmetric)
        return {"link", Fitness::warn, found + "; the other direction differs",
                "look at duplex, PCIe width and NUMA node of the ports at both ends"};
    return {"link", Fitness::ok, found, ""};
}

Check memory(const Machine& machine, const Demand& demand) {
    constexpr std::uint64_t most = std::uint64_t{1} << 61;
    const char* fewer = "plan fewer bits for weights or more devices, or raise the cgroup's limit";
    const std::uint64_t weights = std::min(demand.weight_bytes.value_or(0), most);
    for (const Device& gpu : machine.gpus) {
        if (!demand.gpu || !gpu.memory_bytes || weights <= *gpu.memory_bytes) continue;
        return {
            "memory", Fitness::fail,
            fmt::format("{} has {}, weights take {}", gpu.name, format_bytes(*gpu.memory_bytes), format_bytes(weights)),
            fewer};
    }
    const auto available = machine.memory_available_bytes ? machine.memory_available_bytes : machine.cpu.memory_bytes;
    if (!available) return {"memory", Fitness::warn, "what is available is not known", "see /proc/meminfo"};
    // Until it is committed, a state is there twice: where it is used, and where it is sent from or received.
    const std::uint64_t transit = 2 * std::min(demand.state_bytes.value_or(0), most);
    const std::uint64_t on_host = demand.gpu ? 0 : weights;
    std::string found = fmt::format("{} available", format_bytes(*available));
    if (on_host > 0) found += fmt::format(", weights take {}", format_bytes(on_host));
    if (demand.state_bytes) found += fmt::format(", a state in transit takes {}", format_bytes(transit));
    if (on_host > *available) return {"memory", Fitness::fail, found, fewer};
    const std::uint64_t left = *available - on_host;
    if (transit > left)
        return {"memory", Fitness::fail, found, "send fewer bits, plan shorter prompts, or raise the cgroup's limit"};
    if (transit > left / 4)
        return {"memory", Fitness::warn, found, "few states fit at once beside the weights: limit requests in flight"};
    return {"memory", Fitness::ok, found, ""};
}

Check memlock(const Machine& machine, const Demand& demand) {
    if (machine.rdma_ports_active == 0 && !demand.gpu)
        return {"memlock", Fitness::ok, "no RDMA port and no GPU that memory is pinned for", ""};
    const char* remedy = "ulimit -l unlimited (memlock in limits.conf, LimitMEMLOCK=infinity for slurmd)";
    if (machine.memlock_unlimited == true) return {"memlock", Fitness::ok, "unlimited", ""};
    if (!machine.memlock_bytes) return {"memlock", Fitness::warn, "the limit is not known", remedy};
    const std::string found = fmt::format("{} may be pinned", format_bytes(*machine.memlock_bytes));
    constexpr std::uint64_t least_bytes = 1ULL << 30;
    const bool enough = *machine.memlock_bytes >= std::max(least_bytes, demand.state_bytes.value_or(0));
    if (enough) return {"memlock", Fitness::ok, found, ""};
    return {"memlock", machine.rdma_ports_active > 0 ? Fitness::fail : Fitness::warn, found, remedy};
}

Check shm(const Machine& machine) {
    const auto& free = machine.shm.free_bytes;
    const char* remedy = "give /dev/shm more (docker run --shm-size=1g), or mpirun --mca btl ^vader";
    if (!free) return {"shm", Fitness::warn, "there is no /dev/shm, or its size is not known", remedy};
    const std::string found = fmt::format("{} free", format_bytes(*free));
    constexpr std::uint64_t usual_bytes = 128ULL << 20, least_bytes = 8ULL << 20;
    if (*free < least_bytes) return {"shm", Fitness::fail, found, remedy};
    if (*free < usual_bytes) return {"shm", Fitness::warn, found, remedy};
    return {"shm", Fitness::ok, found, ""};
}

Check hugepages(const Machine& machine) {
    const std::string& mode = machine.transparent_huge_pages;
    if (mode == "always" || mode == "madvise")
        return {"hugepages", Fitness::ok, fmt::format("transparent huge pages: {}", mode), ""};
    if (machine.huge_pages_free.value_or(0) > 0)
        return {"hugepages", Fitness::ok, fmt::format("{} huge pages are free", *machine.huge_pages_free), ""};
    return {"hugepages", Fitness::warn,
            mode.empty() ? "not known" : fmt::format("transparent huge pages: {}, and none reserved", mode),
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"};
}

Check time_sync(const Machine& machine) {
    if (machine.clock_synchronized == true) return {"time", Fitness::ok, "the clock is kept in time", ""};
    return {
        "time", Fitness::warn,
        machine.clock_synchronized ? "nothing keeps the clock in time" : "whether the clock is in time is not known",
        "run chronyd or systemd-timesyncd (on the host of a container): traces of two machines are compared by time"};
}

Check cpus(const Machine& machine) {
    if (!machine.cpus_online || !machine.cpus_allowed) return {"cpus", Fitness::warn, "not known", ""};
    const std::string found = fmt::format("{} of {} may be used, {} threads", *machine.cpus_allowed,
                                          *machine.cpus_online, machine.cpu.threads);
    if (*machine.cpus_allowed == 1 && *machine.cpus_online > 1)
        return {"cpus", Fitness::warn, found,
                "mpirun binds each rank to one core: --bind-to none, or --map-by slot:PE=N"};
    return {"cpus", Fitness::ok, found, ""};
}

Check copy(const Machine& machine) {
    if (machine.cma_allowed == false)
        return {"copy", Fitness::warn, "a process may not copy from another's memory",
                "mpirun --mca btl_vader_single_copy_mechanism none, or docker run --cap-add SYS_PTRACE"};
    return {"copy", Fitness::ok, machine.cma_allowed ? "a process may copy from another's memory" : "not known", ""};
}

}  // namespace

std::string_view to_string(Fitness fitness) noexcept {
    switch (fitness) {
        case Fitness::ok:
            return "ok";
        case Fitness::warn:
            return "warn";
        case Fitness::fail:
            return "fail";
    }
    return "";
}

std::vector<Check> preflight(const Profile& profile, const Machine& machine, const Demand& demand) {
    return {precision(machine, demand),
            driver(machine, demand),
            link(profile, machine, demand),
            memory(machine, demand),
            memlock(machine, demand),
            shm(machine),
            hugepages(machine),
            time_sync(machine),
            cpus(machine),
            copy(machine)};
}

}  // namespace hetero::hw
