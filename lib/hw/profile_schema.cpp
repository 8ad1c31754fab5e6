#include "hw/profile_schema.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/printable.h"

namespace hetero::hw {
namespace {

constexpr std::string_view unknown_suffix = "_unknown";

enum class Kind : std::uint8_t {
    text,
    flag,
    count,   // a whole number, 0 or more
    figure,  // finite, above 0: what is not known is no 0
    texts,   // lists
    counts,
    figures,
    table,
    tables,  // a list of tables
};

struct Field {
    std::string_view name;
    Kind kind = Kind::text;
    std::span<const Field> fields = {};  // of table and tables
};

using enum Kind;

constexpr std::array source{Field{"kind"}, Field{"note"}, Field{"date"}, Field{"quick", flag}};
constexpr std::array host{Field{"hostname"}, Field{"kernel"}, Field{"architecture"}, Field{"os"}};
constexpr std::array cpu{Field{"model"},
                         Field{"vendor"},
                         Field{"isa", texts},
                         Field{"virtual_machine", flag},
                         Field{"cpus_online", count},
                         Field{"cpus_allowed", count},
                         Field{"cpu_quota_cpus", figure},
                         Field{"threads_default", count},
                         Field{"kernel_backend"}};
constexpr std::array caches{Field{"level"}, Field{"size_bytes", count}, Field{"line_bytes", count},
                            Field{"count", count}, Field{"cpus_sharing", count}};
constexpr std::array numa_nodes{Field{"id", count}, Field{"cpus"}, Field{"memory_bytes", count}};
constexpr std::array topology{Field{"packages", count},
                              Field{"cores", count},
                              Field{"cpus", count},
                              Field{"caches", tables, caches},
                              Field{"numa_nodes", tables, numa_nodes},
                              Field{"hwloc_xml"}};
constexpr std::array memory{Field{"memory_total_bytes", count},
                            Field{"memory_available_bytes", count},
                            Field{"memory_limit_bytes", count},
                            Field{"memory_usable_bytes", count},
                            Field{"cgroup_version"},
                            Field{"swap_total_bytes", count},
                            Field{"huge_page_bytes", count},
                            Field{"huge_pages_total", count},
                            Field{"huge_pages_free", count},
                            Field{"transparent_huge_pages"},
                            Field{"shm_total_bytes", count},
                            Field{"shm_free_bytes", count}};
constexpr std::array limits{Field{"memlock_bytes", count}, Field{"memlock_unlimited", flag}, Field{"open_files", count},
                            Field{"processes", count}};

template <std::size_t A, std::size_t B>
constexpr std::array<Field, A + B> joined(const std::array<Field, A>& a, const std::array<Field, B>& b) {
    std::array<Field, A + B> all{};
    for (std::size_t i = 0; i < A; ++i) all[i] = a[i];
    for (std::size_t i = 0; i < B; ++i) all[A + i] = b[i];
    return all;
}

// Of every kernel's rate.
constexpr std::array rate{Field{"threads", count}, Field{"origin"}, Field{"executable", flag}, Field{"unsupported"}};
constexpr std::array product_rates = joined(
    rate, std::array{Field{"dtype"}, Field{"weights"}, Field{"path"}, Field{"bytes_per_weight", figure},
                     Field{"gemm_tokens", count}, Field{"gemm_gflop_per_s", figure}, Field{"gemv_gb_per_s", figure},
                     Field{"batch_tokens", counts}, Field{"batch_gflop_per_s", figures}});
constexpr std::array compute{Field{"backend"}, Field{"method"}, Field{"rates", tables, product_rates}};
constexpr std::array attention_rates =
    joined(rate, std::array{Field{"kv_dtype"}, Field{"head_dim", count}, Field{"prefill_gflop_per_s", figure},
                            Field{"decode_gb_per_s", figure}});
constexpr std::array attention{Field{"method"}, Field{"rates", tables, attention_rates}};
constexpr std::array codec_rates =
    joined(rate, std::array{Field{"codec"}, Field{"encode_gb_per_s", figure}, Field{"decode_gb_per_s", figure},
                            Field{"stored_ratio", figure}});
constexpr std::array kv_codecs{Field{"method"}, Field{"rates", tables, codec_rates}};

constexpr std::array stage_prefill{Field{"tokens", count}, Field{"cached_tokens", count}, Field{"seconds", figure}};
constexpr std::array stage_decode{Field{"context_tokens", count}, Field{"sequences", count},
                                  Field{"step_seconds", figure}};
constexpr std::array stages{Field{"model"},
                            Field{"weights_digest"},
                            Field{"dtype"},
                            Field{"threads", count},
                            Field{"chunk_tokens", count},
                            Field{"method"},
                            Field{"prefill", tables, stage_prefill},
                            Field{"decode", tables, stage_decode}};

constexpr std::array copies{Field{"origin"},
                            Field{"method"},
                            Field{"host_to_device_gb_per_s", figure},
                            Field{"device_to_host_gb_per_s", figure},
                            Field{"pageable_host_to_device_gb_per_s", figure},
                            Field{"pageable_device_to_host_gb_per_s", figure}};
constexpr std::array device_memory{Field{"origin"}, Field{"method"}, Field{"copy_gb_per_s", figure},
                                   Field{"read_gb_per_s", figure}};
constexpr std::array nvml_devices{Field{"name"},
                                  Field{"pci_bus_id"},
                                  Field{"count", count},
                                  Field{"memory_total_bytes", count},
                                  Field{"memory_free_bytes", count},
                                  Field{"compute_capability"},
                                  Field{"mig_enabled", flag},
                                  Field{"ecc_enabled", flag},
                                  Field{"pcie_generation", count},
                                  Field{"pcie_lanes", count},
                                  Field{"pcie_generation_now", count},
                                  Field{"pcie_lanes_now", count},
                                  Field{"nvlinks_active", count},
                                  Field{"nvlink_version", count},
                                  Field{"power_limit_w", figure},
                                  Field{"power_w", figure},
                                  Field{"energy_counter", flag},
                                  Field{"energy_j", figure}};
constexpr std::array nvml{Field{"driver_version"}, Field{"cuda_version"}, Field{"devices", tables, nvml_devices}};
constexpr std::array cuda_devices{Field{"name"},
                                  Field{"pci_bus_id"},
                                  Field{"count", count},
                                  Field{"memory_total_bytes", count},
                                  Field{"compute_capability"},
                                  Field{"multiprocessors", count},
                                  Field{"l2_cache_bytes", count},
                                  Field{"copies", table, copies},
                                  Field{"memory_bandwidth", table, device_memory},
                                  Field{"compute", table, compute},
                                  Field{"attention", table, attention},
                                  Field{"kv_codecs", table, kv_codecs},
                                  Field{"stages", tables, stages}};
constexpr std::array cuda{Field{"cuda_version"}, Field{"devices", tables, cuda_devices}};
constexpr std::array gpus{Field{"nvml", table, nvml}, Field{"cuda", table, cuda}};

constexpr std::array mpi{Field{"launcher"},     Field{"library"},     Field{"library_version"},
                         Field{"ranks", count}, Field{"rank", count}, Field{"transports", texts}};
constexpr std::array rdma_ports{Field{"device"}, Field{"port"},       Field{"state"},
                                Field{"rate"},   Field{"link_layer"}, Field{"numa_node", count}};
constexpr std::array interfaces{Field{"name"}, Field{"state"}, Field{"speed_mbit_per_s", count},
                                Field{"mtu_bytes", count}};
constexpr std::array fabric{Field{"rdma_ports", tables, rdma_ports},
                            Field{"interfaces", tables, interfaces},
                            Field{"libfabric_version"},
                            Field{"ucx_version"},
                            Field{"ibverbs_installed", flag},
                            Field{"ibverbs_devices", count}};
constexpr std::array process_copy{Field{"cma_allowed", flag}, Field{"cma_reason"}, Field{"yama_ptrace_scope", count}};
constexpr std::array rapl_domains{Field{"domain"},
                                  Field{"label"},
                                  Field{"readable", flag},
                                  Field{"energy_j", figure},
                                  Field{"energy_range_j", figure},
                                  Field{"power_w", figure},
                                  Field{"power_limit_w", figure}};
constexpr std::array energy{Field{"rapl_domains", tables, rapl_domains}};
constexpr std::array clock_fields{Field{"clock_source"}, Field{"clock_resolution_ns", count},
                                  Field{"clock_read_ns", figure}, Field{"synchronized", flag},
                                  Field{"max_error_us", count}};
constexpr std::array bandwidth_rates{Field{"threads", count},        Field{"cpu_node", count},
                                     Field{"memory_node", count},    Field{"origin"},
                                     Field{"read_gb_per_s", figure}, Field{"triad_gb_per_s", figure}};
constexpr std::array memory_bandwidth{Field{"method"}, Field{"array_bytes", count},
                                      Field{"rates", tables, bandwidth_rates},
                                      Field{"node_rates", tables, bandwidth_rates}};
constexpr std::array storage{Field{"path"},
                             Field{"origin"},
                             Field{"file_system"},
                             Field{"total_bytes", count},
                             Field{"free_bytes", count},
                             Field{"method"},
                             Field{"file_bytes", count},
                             Field{"write_gb_per_s", figure},
                             Field{"read_gb_per_s", figure}};

// Of one machine.
constexpr std::array machine{Field{"threads_measured", count},
                             Field{"host", table, host},
                             Field{"cpu", table, cpu},
                             Field{"topology", table, topology},
                             Field{"memory", table, memory},
                             Field{"limits", table, limits},
                             Field{"gpus", table, gpus},
                             Field{"mpi", table, mpi},
                             Field{"fabric", table, fabric},
                             Field{"process_copy", table, process_copy},
                             Field{"energy", table, energy},
                             Field{"clock", table, clock_fields},
                             Field{"memory_bandwidth", table, memory_bandwidth},
                             Field{"compute", table, compute},
                             Field{"attention", table, attention},
                             Field{"kv_codecs", table, kv_codecs},
                             Field{"disk", table, storage},
                             Field{"shm", table, storage},
                             Field{"stages", tables, stages}};

constexpr std::array fleet_machine =
    joined(std::array{Field{"name"}, Field{"ranks", counts}, Field{"count", count}}, machine);
constexpr std::array links{Field{"from"},
                           Field{"to"},
                           Field{"from_rank", count},
                           Field{"to_rank", count},
                           Field{"via"},
                           Field{"origin"},
                           Field{"latency_us", figure},
                           Field{"gb_per_s", figure},
                           Field{"both_ways_gb_per_s", figure},
                           Field{"message_bytes", counts},
                           Field{"message_gb_per_s", figures},
                           Field{"asymmetric", flag}};
constexpr std::array document =
    joined(std::array{Field{"tool"}, Field{"version"}, Field{"schema", count}, Field{"profile_schema", count},
                      Field{"source", table, source}, Field{"machines", tables, fleet_machine}, Field{"links_method"},
                      Field{"links", tables, links}},
           machine);

using Json = nlohmann::json;

bool is_count(const Json& value) {
    return value.is_number_unsigned() || (value.is_number_integer() && value.get<std::int64_t>() >= 0);
}
// Beyond any machine, and still far from where products of figures leave the range of doubles.
constexpr double least_figure = 1e-18, most_figure = 1e18;
bool is_figure(const Json& value) {
    return value.is_number() && value.get<double>() >= least_figure && value.get<double>() <= most_figure;
}
bool is_text(const Json& value) { return value.is_string(); }

template <class Is>
bool is_list(const Json& value, Is is) {
    return value.is_array() && std::all_of(value.begin(), value.end(), is);
}

const char* expected(Kind kind) {
    switch (kind) {
        case text:
            return "a string";
        case flag:
            return "true or false";
        case count:
            return "a whole number, 0 or more";
        case figure:
            return "a number above 0, at most 1e18 (what is not known is left out)";
        case texts:
            return "a list of strings";
        case counts:
            return "a list of whole numbers";
        case figures:
            return "a list of numbers above 0, at most 1e18";
        case table:
            return "a table";
        case tables:
            return "a list of tables";
    }
    return "";
}

bool fits(const Json& value, Kind kind) {
    switch (kind) {
        case text:
            return is_text(value);
        case flag:
            return value.is_boolean();
        case count:
            return is_count(value);
        case figure:
            return is_figure(value);
        case texts:
            return is_list(value, is_text);
        case counts:
            return is_list(value, is_count);
        case figures:
            return is_list(value, is_figure);
        case table:
            return value.is_object();
        case tables:
            return is_list(value, [](const Json& item) { return item.is_object(); });
    }
    return false;
}

const Field* find(std::span<const Field> fields, std::string_view name) {
    const auto found = std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == name; });
    return found == fields.end() ? nullptr : &*found;
}

// The field that a key NAME_unknown is the reason of; null: the key is none of these.
const Field* reason_of(std::span<const Field> fields, std::string_view key) {
    return key.ends_with(unknown_suffix) ? find(fields, key.substr(0, key.size() - unknown_suffix.size())) : nullptr;
}

// One of the table's keys that it may have, the reason of an unknown value included.
std::string nearest_key(std::span<const Field> fields, const std::string& key) {
    std::vector<std::string> names;
    for (const Field& field : fields) names.insert(names.end(), {std::string(field.name), std::string(field.name)});
    for (std::size_t i = 1; i < names.size(); i += 2) names[i] += unknown_suffix;
    return std::string(nearest_name(key, std::vector<std::string_view>(names.begin(), names.end())));
}

// In a table that stands at `path`.
Status check_table(const Json& values, std::span<const Field> fields, std::string_view name, const std::string& path) {
    const auto at = [&](const std::string& key) { return path.empty() ? printable(key) : path + "." + printable(key); };
    for (const auto& [key, value] : values.items()) {
        if (find(fields, key) != nullptr || reason_of(fields, key) != nullptr) continue;
        return fail(Errc::bad_input, "{}: {}: profiles have no such key; the nearest one is '{}'", name, at(key),
                    nearest_key(fields, key));
    }
    for (const auto& [key, value] : values.items()) {
        const Field* field = find(fields, key);
        if (field == nullptr) {
            const std::string known(reason_of(fields, key)->name);
            if (!is_text(value)) return fail(Errc::bad_input, "{}: {}: must be a string", name, at(key));
            const auto other = values.find(known);
            if (other == values.end() || other->is_null()) continue;
            return fail(Errc::bad_input, "{}: {}: but '{}' is known", name, at(key), known);
        }
        if (value.is_null()) {
            if (values.contains(key + std::string(unknown_suffix))) continue;
            return fail(Errc::bad_input, "{}: {}: null, and no {}{} says why", name, at(key), key, unknown_suffix);
        }
        if (!fits(value, field->kind))
            return fail(Errc::bad_input, "{}: {}: must be {}", name, at(key), expected(field->kind));
        if (field->kind == table) HETERO_CHECK(check_table(value, field->fields, name, at(key)));
        if (field->kind == tables) {
            std::size_t index = 0;
            for (const Json& item : value)
                HETERO_CHECK(check_table(item, field->fields, name, fmt::format("{}[{}]", at(key), index++)));
        }
    }
    return {};
}

}  // namespace

Status check_fields(const Json& value, std::string_view name) {
    if (!value.is_object()) return fail(Errc::bad_input, "{}: must be a table", name);
    return check_table(value, document, name, "");
}

}  // namespace hetero::hw
