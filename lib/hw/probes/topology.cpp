// Packages, cores, caches and NUMA nodes, by hwloc.
#include <hwloc.h>

#include <cstdlib>
#include <map>
#include <memory>

#include "hw/probes/probes.h"

namespace hetero::hw {
namespace {

struct TopologyDeleter {
    void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, TopologyDeleter>;

Topology load_topology() {
    hwloc_topology_t raw = nullptr;
    if (hwloc_topology_init(&raw) != 0) return nullptr;
    Topology topology(raw);
    // The whole machine: what this process may use of it is in the cpu and memory sections.
    if (hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) != 0) return nullptr;
    if (hwloc_topology_load(raw) != 0) return nullptr;
    return topology;
}

void put_count(Json& section, const char* name, hwloc_topology_t topology, hwloc_obj_type_t type) {
    const int count = hwloc_get_nbobjs_by_type(topology, type);
    put(section, name, count > 0 ? std::optional(count) : std::nullopt, "the system does not report it");
}

std::string cpu_list(hwloc_const_bitmap_t set) {
    char* text = nullptr;
    if (set == nullptr || hwloc_bitmap_list_asprintf(&text, set) < 0) return "";
    std::string list(text);
    std::free(text);
    return list;
}

// One entry per kind and size, with how many there are of it.
Json caches(hwloc_topology_t topology) {
    Json list = Json::array();
    for (const hwloc_obj_type_t type : {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L1ICACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE,
                                        HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L5CACHE}) {
        struct Kind {
            int count = 0;
            unsigned line_bytes = 0;
        };
        std::map<std::pair<std::uint64_t, int>, Kind> kinds;  // size, CPUs that share one
        for (hwloc_obj_t cache = nullptr; (cache = hwloc_get_next_obj_by_type(topology, type, cache)) != nullptr;) {
            Kind& kind = kinds[{cache->attr->cache.size, hwloc_bitmap_weight(cache->cpuset)}];
            ++kind.count;
            kind.line_bytes = cache->attr->cache.linesize;
        }
        for (const auto& [size_and_cpus, kind] : kinds) {
            Json entry;
            entry["level"] = type == HWLOC_OBJ_L1ICACHE ? "L1i" : hwloc_obj_type_string(type);
            if (type == HWLOC_OBJ_L1CACHE) entry["level"] = "L1d";
            if (type >= HWLOC_OBJ_L2CACHE && type <= HWLOC_OBJ_L5CACHE) {
                entry["level"] = std::string("L") + static_cast<char>('2' + (type - HWLOC_OBJ_L2CACHE));
            }
            put(entry, "size_bytes", size_and_cpus.first > 0 ? std::optional(size_and_cpus.first) : std::nullopt,
                "the system does not report it");
            put(entry, "line_bytes", kind.line_bytes > 0 ? std::optional(kind.line_bytes) : std::nullopt,
                "the system does not report it");
            entry["count"] = kind.count;
            entry["cpus_sharing"] = size_and_cpus.second;
            list.push_back(entry);
        }
    }
    return list;
}

Json numa_nodes(hwloc_topology_t topology) {
    Json list = Json::array();
    for (hwloc_obj_t node = nullptr;
         (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
        Json entry;
        entry["id"] = node->os_index;
        entry["cpus"] = cpu_list(node->cpuset);
        const std::uint64_t bytes = node->attr->numanode.local_memory;
        put(entry, "memory_bytes", bytes > 0 ? std::optional(bytes) : std::nullopt, "the system does not report it");
        list.push_back(entry);
    }
    return list;
}

// hwloc's own document of the whole topology, for tools that read it (lstopo -i).
std::optional<std::string> xml(hwloc_topology_t topology) {
    constexpr int max_bytes = 512 << 10;
    char* text = nullptr;
    int bytes = 0;  // with the terminating 0
    if (hwloc_topology_export_xmlbuffer(topology, &text, &bytes, 0) != 0) return std::nullopt;
    const std::optional<std::string> out =
        bytes > 1 && bytes <= max_bytes ? std::optional<std::string>(std::in_place, text) : std::nullopt;
    hwloc_free_xmlbuffer(topology, text);
    return out;
}

}  // namespace

Json probe_topology(const Context& context) {
    Json section;
    const Topology topology = context.recorded() ? nullptr : load_topology();
    if (!topology) {
        const char* reason = context.recorded() ? not_recorded : "hwloc could not read the topology";
        for (const char* field : {"packages", "cores", "cpus", "caches", "numa_nodes", "hwloc_xml"}) {
            put_unknown(section, field, reason);
        }
        return section;
    }
    put_count(section, "packages", topology.get(), HWLOC_OBJ_PACKAGE);
    put_count(section, "cores", topology.get(), HWLOC_OBJ_CORE);
    put_count(section, "cpus", topology.get(), HWLOC_OBJ_PU);
    const Json cache_list = caches(topology.get());
    put(section, "caches", cache_list.empty() ? std::nullopt : std::optional(cache_list),
        "the system reports no caches");
    const Json nodes = numa_nodes(topology.get());
    put(section, "numa_nodes", nodes.empty() ? std::nullopt : std::optional(nodes), "the system reports no NUMA nodes");
    put(section, "hwloc_xml", xml(topology.get()), "hwloc gives none, or one of over 512 KiB");
    return section;
}

}  // namespace hetero::hw
