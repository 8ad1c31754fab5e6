// RDMA devices, network interfaces, and the libraries that drive them.
#include <cstdlib>

#include "hw/isolated.h"
#include "hw/probes/probes.h"

namespace hetero::hw {
namespace {

constexpr double library_timeout_s = 10;

// /sys/class/infiniband/DEVICE/ports/PORT: RoCE and other RDMA devices are listed there as well.
Json rdma_ports(const Context& context) {
    Json list = Json::array();
    const std::string base = context.path("/sys/class/infiniband");
    for (const std::string& device : list_folder(base)) {
        for (const std::string& port : list_folder(base + "/" + device + "/ports")) {
            const std::string folder = base + "/" + device + "/ports/" + port;
            Json entry;
            entry["device"] = device;
            entry["port"] = port;
            put(entry, "state", read_text(folder + "/state"), "its state cannot be read");  // "4: ACTIVE"
            put(entry, "rate", read_text(folder + "/rate"), "its rate cannot be read");     // "200 Gb/sec (4X HDR)"
            put(entry, "link_layer", read_text(folder + "/link_layer"), "its link layer cannot be read");
            const auto node = read_integer(base + "/" + device + "/device/numa_node");  // -1 where there is one only
            put(entry, "numa_node", node && *node >= 0 ? node : std::nullopt, "the system does not report it");
            list.push_back(entry);
        }
    }
    return list;
}

Json interfaces(const Context& context) {
    Json list = Json::array();
    const std::string base = context.path("/sys/class/net");
    for (const std::string& name : list_folder(base)) {
        const std::string folder = base + "/" + name;
        Json entry;
        entry["name"] = name;
        put(entry, "state", read_text(folder + "/operstate"), "its state cannot be read");
        const auto speed = read_integer(folder + "/speed");  // -1 where the driver does not know
        put(entry, "speed_mbit_per_s", speed && *speed > 0 ? speed : std::nullopt, "the driver does not report it");
        put(entry, "mtu_bytes", read_integer(folder + "/mtu"), "its MTU cannot be read");
        list.push_back(entry);
    }
    return list;
}

// fi_version(3): major in the upper 16 bits, minor in the lower.
std::string libfabric_version() {
    const Library lib({"libfabric.so.1"});
    auto* version = lib.symbol<std::uint32_t()>("fi_version");
    return version == nullptr ? "" : fmt::format("{}.{}", version() >> 16, version() & 0xFFFFU);
}

std::string ucx_version() {
    const Library lib({"libucp.so.0"});
    auto* version = lib.symbol<const char*()>("ucp_get_version_string");
    return version == nullptr ? "" : version();
}

// Devices that a program gets from libibverbs, which may be fewer than the kernel has: the number, "" without the
// library.
std::string verbs_devices() {
    const Library lib({"libibverbs.so.1"});
    auto* get_list = lib.symbol<void**(int*)>("ibv_get_device_list");
    if (get_list == nullptr) return "";
    int count = 0;
    return get_list(&count) == nullptr ? "0" : std::to_string(count);
}

void put_library(Json& section, const std::string& field, const char* soname, std::string (*version)()) {
    const auto answer = run_isolated(version, library_timeout_s);
    if (answer && !answer->empty()) {
        section[field] = *answer;
    } else {
        put_unknown(
            section, field,
            answer ? fmt::format("{} is not installed", soname) : fmt::format("{} {}", soname, answer.error().message));
    }
}

}  // namespace

Json probe_fabric(const Context& context) {
    Json section;
    section["rdma_ports"] = rdma_ports(context);
    const Json net = interfaces(context);
    put(section, "interfaces", net.empty() ? std::nullopt : std::optional(net),
        "no network interfaces under /sys/class/net");
    if (context.recorded()) {
        for (const char* field : {"libfabric_version", "ucx_version", "ibverbs_installed", "ibverbs_devices"})
            put_unknown(section, field, not_recorded);
        return section;
    }
    put_library(section, "libfabric_version", "libfabric.so.1", libfabric_version);
    put_library(section, "ucx_version", "libucp.so.0", ucx_version);
    const auto verbs = run_isolated(verbs_devices, library_timeout_s);
    const std::string failure = verbs ? "" : "libibverbs.so.1 " + verbs.error().message;
    put(section, "ibverbs_installed", verbs ? std::optional(!verbs->empty()) : std::nullopt, failure);
    put(section, "ibverbs_devices", verbs && !verbs->empty() ? std::optional(std::atoi(verbs->c_str())) : std::nullopt,
        verbs ? "libibverbs.so.1 is not installed" : failure);
    return section;
}

}  // namespace hetero::hw
