// The profile on a page, for people. Everything in it is in the document too.
#include <fmt/format.h>

#include "base/units.h"
#include "hw/section.h"

namespace hetero::hw {
namespace {

class Page {
public:
    void line(std::string_view label, const std::string& text) { out_ += fmt::format("{:<12}{}\n", label, text); }
    [[nodiscard]] std::string take() { return std::move(out_); }

private:
    std::string out_;
};

// The value as text, or "unknown (reason)".
std::string text(const Json& section, const std::string& name) {
    const auto found = section.find(name);
    if (found == section.end()) return "unknown";
    if (found->is_null()) {
        const auto reason = section.find(name + "_unknown");
        return reason != section.end() ? fmt::format("unknown ({})", reason->get<std::string>()) : "unknown";
    }
    return found->is_string() ? found->get<std::string>() : found->dump();
}

// "1 thread", "2 threads"
std::string thread_count(const Json& rate) {
    const std::string count = text(rate, "threads");
    return count == "1" ? "1 thread" : count + " threads";
}

bool known(const Json& section, const std::string& name) {
    const auto found = section.find(name);
    return found != section.end() && !found->is_null();
}

std::string size(const Json& section, const std::string& name) {
    return known(section, name) ? format_bytes(section.at(name).get<std::uint64_t>()) : text(section, name);
}

std::string joined(const Json& list) {
    std::string out;
    for (const Json& item : list) {
        if (!out.empty()) out += ' ';
        out += item.get<std::string>();
    }
    return out;
}

void cpu_lines(const Json& document, Page& page) {
    const Json &cpu = document.at("cpu"), &topology = document.at("topology");
    page.line("CPU", text(cpu, "model"));
    std::string count = fmt::format("{} online, {} allowed", text(cpu, "cpus_online"), text(cpu, "cpus_allowed"));
    if (known(cpu, "cpu_quota_cpus")) count += fmt::format(", quota {}", text(cpu, "cpu_quota_cpus"));
    page.line("CPUs", fmt::format("{}; {} threads by default", count, text(cpu, "threads_default")));
    page.line("ISA", known(cpu, "isa") ? joined(cpu.at("isa")) : text(cpu, "isa"));
    page.line("Backend", text(cpu, "kernel_backend"));
    std::string caches;
    if (known(topology, "caches")) {
        for (const Json& cache : topology.at("caches")) {
            caches += fmt::format("{}{} {} x {}", caches.empty() ? "" : ", ", text(cache, "level"),
                                  text(cache, "count"), size(cache, "size_bytes"));
        }
    }
    page.line("Caches", caches.empty() ? text(topology, "caches") : caches);
    page.line("NUMA nodes", known(topology, "numa_nodes") ? fmt::format("{}", topology.at("numa_nodes").size())
                                                          : text(topology, "numa_nodes"));
}

void memory_lines(const Json& document, Page& page) {
    const Json &memory = document.at("memory"), &bandwidth = document.at("memory_bandwidth");
    page.line("Memory", fmt::format("{}, {} available, limit {}", size(memory, "memory_total_bytes"),
                                    size(memory, "memory_available_bytes"),
                                    known(memory, "memory_limit_bytes") ? size(memory, "memory_limit_bytes") : "none"));
    page.line("/dev/shm", fmt::format("{}, {} free", size(memory, "shm_total_bytes"), size(memory, "shm_free_bytes")));
    if (!known(bandwidth, "rates")) return page.line("Bandwidth", text(bandwidth, "rates"));
    for (const Json& rate : bandwidth.at("rates")) {
        page.line("Bandwidth", fmt::format("{}: read {} GB/s, triad {} GB/s", thread_count(rate),
                                           text(rate, "read_gb_per_s"), text(rate, "triad_gb_per_s")));
    }
}

void compute_lines(const Json& document, Page& page) {
    const Json& compute = document.at("compute");
    if (!known(compute, "rates")) return page.line("Compute", text(compute, "rates"));
    for (const Json& rate : compute.at("rates")) {
        if (!rate.value("executable", true)) {
            page.line("Compute", fmt::format("{} unsupported: {}", text(rate, "dtype"), text(rate, "unsupported")));
            continue;
        }
        page.line("Compute", fmt::format("{:<5} {:<5} {:<7} {}: gemm {} GFLOP/s, gemv {} GB/s", text(rate, "dtype"),
                                         text(rate, "weights"), text(rate, "path"), thread_count(rate),
                                         text(rate, "gemm_gflop_per_s"), text(rate, "gemv_gb_per_s")));
    }
}

void device_lines(const Json& document, Page& page) {
    const Json& gpus = document.at("gpus");
    for (const char* side : {"nvml", "cuda"}) {
        const Json& devices = gpus.at(side);
        if (!known(devices, "devices")) {
            page.line("GPUs", fmt::format("none known by {}: {}", side, text(devices, "devices_unknown")));
            continue;
        }
        page.line("GPUs", fmt::format("{} known by {}", devices.at("devices").size(), side));
        for (const Json& gpu : devices.at("devices")) {
            page.line("", fmt::format("{}, {}, compute capability {}", text(gpu, "name"),
                                      size(gpu, "memory_total_bytes"), text(gpu, "compute_capability")));
        }
    }
    const Json &mpi = document.at("mpi"), &fabric = document.at("fabric");
    page.line("MPI", text(mpi, "library_version"));
    page.line("Fabric", fmt::format("{} RDMA ports, libfabric {}, UCX {}", fabric.at("rdma_ports").size(),
                                    text(fabric, "libfabric_version"), text(fabric, "ucx_version")));
    page.line("CMA", text(document.at("process_copy"), "cma_allowed"));
    page.line("Energy", known(document.at("energy"), "rapl_domains")
                            ? fmt::format("{} RAPL domains", document.at("energy").at("rapl_domains").size())
                            : text(document.at("energy"), "rapl_domains"));
}

}  // namespace

std::string to_summary(const Json& document) {
    Page page;
    const Json &host = document.at("host"), &disk = document.at("disk");
    page.line("Host", fmt::format("{}, {}, {}", text(host, "hostname"), text(host, "os"), text(host, "kernel")));
    cpu_lines(document, page);
    memory_lines(document, page);
    compute_lines(document, page);
    page.line("Disk", fmt::format("{} ({}): write {} GB/s, read {} GB/s, {} free", text(disk, "path"),
                                  text(disk, "file_system"), text(disk, "write_gb_per_s"), text(disk, "read_gb_per_s"),
                                  size(disk, "free_bytes")));
    device_lines(document, page);
    if (known(document, "stages")) {
        for (const Json& entry : document.at("stages")) {
            page.line("Model", fmt::format("{}, {} threads", text(entry, "model"), text(entry, "threads")));
            for (const Json& point : entry.at("prefill"))
                page.line("", fmt::format("prefill of {} tokens: {} s", text(point, "tokens"), text(point, "seconds")));
            for (const Json& point : entry.at("decode"))
                page.line("", fmt::format("step of {} with {} tokens: {} s", text(point, "sequences"),
                                          text(point, "context_tokens"), text(point, "step_seconds")));
        }
    }
    return page.take();
}

}  // namespace hetero::hw
