#include "hw/profile.h"

#include <algorithm>
#include <new>

#include "base/printable.h"
#include "base/toml.h"
#include "hw/profile_schema.h"
#include "hw/profile_table.h"
#include "io/json_text.h"

namespace hetero::hw {
namespace {

constexpr std::size_t max_file_bytes = 32U << 20;
constexpr int max_machines = 4096, max_gpus = 256;  // of one kind; of one kind in a machine

using Json = nlohmann::json;

Json to_json(const TomlNode& node) {
    if (const auto* table = node.as<TomlNode::Table>()) {
        Json out = Json::object();
        for (const auto& [key, value] : *table) out[key] = to_json(value);
        return out;
    }
    if (const auto* array = node.as<TomlNode::Array>()) {
        Json out = Json::array();
        for (const TomlNode& value : *array) out.push_back(to_json(value));
        return out;
    }
    if (const auto* text = node.as<std::string>()) return *text;
    if (const auto* flag = node.as<bool>()) return *flag;
    if (const auto* whole = node.as<std::int64_t>()) return *whole;
    return *node.as<double>();
}

// `otherwise` where the table does not say it.
Status read_origin(const Table& table, const char* key, Origin otherwise, Origin& out) {
    const std::string text = table.text(key);
    out = otherwise;
    if (text.empty()) return {};
    for (const Origin known : {Origin::measured, Origin::published, Origin::specification}) {
        if (text != to_string(known)) continue;
        out = known;
        return {};
    }
    return table.wrong(key, "'{}' is none of measured, published, specification", printable(text));
}

// Points of a curve, whose x ascends from 1 or more, out of two lists.
template <class Point>
Status read_curve(const Table& table, const char* x_key, const char* y_key, std::vector<Point>& out) {
    const auto xs = table.list<std::uint64_t>(x_key);
    const auto ys = table.list<double>(y_key);
    if (xs.size() != ys.size()) return table.wrong(x_key, "{} entries, but {} has {}", xs.size(), y_key, ys.size());
    for (std::size_t i = 0; i < xs.size(); ++i) {
        auto& [x, y] = out.emplace_back();
        using X = decltype(x);
        if (!std::in_range<X>(xs[i]) || xs[i] == 0 || (i > 0 && xs[i] <= xs[i - 1]))
            return table.wrong(x_key, "must ascend from 1 or more");
        x = static_cast<X>(xs[i]);
        y = ys[i];
    }
    return {};
}

// What every rate has: what it is of, by `key`, where it comes from, and whether there is one.
template <class Rate>
Status read_rate(const Table& table, const char* key, std::string& of, Origin origin, Rate& rate) {
    HETERO_CHECK(table.need({key}));
    of = table.text(key);
    HETERO_CHECK(read_origin(table, "origin", origin, rate.origin));
    HETERO_CHECK(table.number("threads", rate.threads));
    rate.unsupported = table.text("unsupported");
    const auto executable = table.flag("executable");
    if (executable == true && !rate.unsupported.empty()) return table.wrong("unsupported", "but 'executable' is true");
    if (executable == false && rate.unsupported.empty()) rate.unsupported = "no kernel passes here";
    return {};
}

Status read_compute(const Table& section, Origin origin, std::vector<ProductRate>& out) {
    for (const Table& table : section.tables("rates")) {
        ProductRate& rate = out.emplace_back();
        HETERO_CHECK(read_rate(table, "dtype", rate.dtype, origin, rate));
        rate.weights = table.text("weights");
        rate.path = table.text("path");
        rate.bytes_per_weight = table.figure("bytes_per_weight");
        HETERO_CHECK(table.number("gemm_tokens", rate.gemm_tokens));
        rate.gemm_gflop_per_s = table.figure("gemm_gflop_per_s");
        rate.gemv_gb_per_s = table.figure("gemv_gb_per_s");
        HETERO_CHECK(read_curve(table, "batch_tokens", "batch_gflop_per_s", rate.batches));
    }
    return {};
}

Status read_attention(const Table& section, Origin origin, std::vector<AttentionRate>& out) {
    for (const Table& table : section.tables("rates")) {
        AttentionRate& rate = out.emplace_back();
        HETERO_CHECK(read_rate(table, "kv_dtype", rate.kv_dtype, origin, rate));
        HETERO_CHECK(table.number("head_dim", rate.head_dim));
        rate.prefill_gflop_per_s = table.figure("prefill_gflop_per_s");
        rate.decode_gb_per_s = table.figure("decode_gb_per_s");
    }
    return {};
}

Status read_codecs(const Table& section, Origin origin, std::vector<CodecRate>& out) {
    for (const Table& table : section.tables("rates")) {
        CodecRate& rate = out.emplace_back();
        HETERO_CHECK(read_rate(table, "codec", rate.codec, origin, rate));
        rate.encode_gb_per_s = table.figure("encode_gb_per_s");
        rate.decode_gb_per_s = table.figure("decode_gb_per_s");
        rate.stored_ratio = table.figure("stored_ratio");
    }
    return {};
}

Status read_bandwidth(const Table& section, Origin origin, std::vector<BandwidthRate>& out) {
    for (const char* key : {"rates", "node_rates"}) {
        for (const Table& table : section.tables(key)) {
            BandwidthRate& rate = out.emplace_back();
            HETERO_CHECK(read_origin(table, "origin", origin, rate.origin));
            HETERO_CHECK(table.number("threads", rate.threads));
            HETERO_CHECK(table.number("cpu_node", rate.cpu_node));
            HETERO_CHECK(table.number("memory_node", rate.memory_node));
            rate.read_gb_per_s = table.figure("read_gb_per_s");
            rate.triad_gb_per_s = table.figure("triad_gb_per_s");
        }
    }
    std::stable_sort(out.begin(), out.end(), [](const BandwidthRate& a, const BandwidthRate& b) {
        return std::pair(a.cpu_node.has_value(), a.threads) < std::pair(b.cpu_node.has_value(), b.threads);
    });
    return {};
}

Status read_stages(const Table& table, StageTimes& out) {
    constexpr int most_tokens = 1 << 30, most_sequences = 1 << 20;
    out.model = table.text("model");
    out.weights_digest = table.text("weights_digest");
    out.dtype = table.text("dtype");
    HETERO_CHECK(table.number("threads", out.threads));
    int value = 0;
    HETERO_CHECK(table.number("chunk_tokens", value, most_tokens));
    out.chunk_tokens = value;
    for (const Table& entry : table.tables("prefill")) {
        HETERO_CHECK(entry.need({"tokens", "seconds"}));
        int tokens = 0, cached = 0;
        HETERO_CHECK(entry.number("tokens", tokens, most_tokens));
        HETERO_CHECK(entry.number("cached_tokens", cached, most_tokens));
        if (tokens <= cached) return entry.wrong("tokens", "must be more than 'cached_tokens'");
        out.prefill.push_back({double(tokens), double(cached), *entry.figure("seconds")});
    }
    for (const Table& entry : table.tables("decode")) {
        HETERO_CHECK(entry.need({"context_tokens", "step_seconds"}));
        int context = 0, sequences = 1;
        HETERO_CHECK(entry.number("context_tokens", context, most_tokens));
        HETERO_CHECK(entry.number("sequences", sequences, most_sequences));
        if (sequences == 0) return entry.wrong("sequences", "is 0");
        out.decode.push_back({double(context), double(sequences), *entry.figure("step_seconds")});
    }
    return {};
}

Status read_kernels(const Table& table, Origin origin, Device& device) {
    HETERO_CHECK(read_compute(table.table("compute"), origin, device.products));
    HETERO_CHECK(read_attention(table.table("attention"), origin, device.attention));
    for (const Table& stages : table.tables("stages")) {
        HETERO_CHECK(read_stages(stages, device.stages.emplace_back()));
        device.stages.back().machine = device.name;
    }
    return read_codecs(table.table("kv_codecs"), origin, device.codecs);
}

Status read_cpu(const Table& machine, Origin origin, Device& cpu) {
    const Table table = machine.table("cpu");
    cpu.name = table.text("model");
    cpu.memory_bytes = machine.table("memory").bytes("memory_usable_bytes");
    HETERO_CHECK(table.number("threads_default", cpu.threads));
    for (const Table& domain : machine.table("energy").tables("rapl_domains")) {
        const auto limit_w = domain.figure("power_limit_w");
        if (limit_w && domain.text("label").starts_with("package"))
            cpu.power_limit_w = cpu.power_limit_w.value_or(0) + *limit_w;
    }
    HETERO_CHECK(read_bandwidth(machine.table("memory_bandwidth"), origin, cpu.bandwidth));
    return read_kernels(machine, origin, cpu);
}

// What CUDA lets the process use, with the power limit that NVML knows of the same device.
Status read_gpus(const Table& section, Origin origin, std::vector<Device>& out) {
    const std::vector<Table> managed = section.table("nvml").tables("devices");
    const std::vector<Table> usable = section.table("cuda").tables("devices");
    for (const Table& table : usable.empty() ? managed : usable) {
        Device& gpu = out.emplace_back();
        gpu.gpu = true;
        gpu.name = table.text("name");
        HETERO_CHECK(table.number("count", gpu.count, max_gpus));
        if (gpu.count == 0) return table.wrong("count", "is 0");
        gpu.memory_bytes = table.bytes("memory_total_bytes");
        gpu.compute_capability = table.text("compute_capability");
        const Table copies = table.table("copies");
        HETERO_CHECK(read_origin(copies, "origin", origin, gpu.copies.origin));
        gpu.copies.host_to_device_gb_per_s = copies.figure("host_to_device_gb_per_s");
        gpu.copies.device_to_host_gb_per_s = copies.figure("device_to_host_gb_per_s");
        const Table memory = table.table("memory_bandwidth");
        if (memory.find("copy_gb_per_s") != nullptr || memory.find("read_gb_per_s") != nullptr) {
            BandwidthRate& rate = gpu.bandwidth.emplace_back();
            HETERO_CHECK(read_origin(memory, "origin", origin, rate.origin));
            rate.read_gb_per_s = memory.figure("read_gb_per_s");
            if (!rate.read_gb_per_s) rate.read_gb_per_s = memory.figure("copy_gb_per_s");
        }
        HETERO_CHECK(read_kernels(table, origin, gpu));
        for (const Table& other : managed) {
            const std::string id = other.text("pci_bus_id");
            if (other.text("name") == gpu.name && (id.empty() || id == table.text("pci_bus_id")))
                gpu.power_limit_w = other.figure("power_limit_w");
        }
    }
    return {};
}

Status read_storage(const Table& table, Origin origin, StorageRate& out) {
    out.path = table.text("path");
    out.file_system = table.text("file_system");
    HETERO_CHECK(read_origin(table, "origin", origin, out.origin));
    out.free_bytes = table.bytes("free_bytes");
    out.write_gb_per_s = table.figure("write_gb_per_s");
    out.read_gb_per_s = table.figure("read_gb_per_s");
    return {};
}

Status read_machine(const Table& table, Origin origin, Machine& out) {
    for (const std::uint64_t rank : table.list<std::uint64_t>("ranks")) {
        if (rank > INT_MAX) return table.wrong("ranks", "{} is no rank", rank);
        out.ranks.push_back(static_cast<int>(rank));
    }
    HETERO_CHECK(read_cpu(table, origin, out.cpu));
    HETERO_CHECK(read_gpus(table.table("gpus"), origin, out.gpus));
    HETERO_CHECK(read_storage(table.table("disk"), origin, out.disk));
    HETERO_CHECK(read_storage(table.table("shm"), origin, out.shm));
    if (!out.shm.free_bytes) out.shm.free_bytes = table.table("memory").bytes("shm_free_bytes");
    const Table limits = table.table("limits");
    out.memlock_bytes = limits.bytes("memlock_bytes");
    out.memlock_unlimited = limits.flag("memlock_unlimited");
    out.clock_synchronized = table.table("clock").flag("synchronized");
    out.cma_allowed = table.table("process_copy").flag("cma_allowed");
    out.driver_version = table.table("gpus").table("nvml").text("driver_version");
    out.driver_cuda_version = table.table("gpus").table("nvml").text("cuda_version");
    out.cuda_version = table.table("gpus").table("cuda").text("cuda_version");
    out.gpus_unknown = table.table("gpus").table("cuda").text("devices_unknown");
    const Table memory = table.table("memory");
    out.memory_available_bytes = memory.bytes("memory_available_bytes");
    out.huge_pages_free = memory.bytes("huge_pages_free");
    out.transparent_huge_pages = memory.text("transparent_huge_pages");
    HETERO_CHECK(table.table("cpu").number("cpus_online", out.cpus_online));
    HETERO_CHECK(table.table("cpu").number("cpus_allowed", out.cpus_allowed));
    for (const Table& port : table.table("fabric").tables("rdma_ports"))
        if (port.text("state").ends_with("ACTIVE")) ++out.rdma_ports_active;
    return {};
}

Status read_link(const Table& table, Origin origin, const Profile& profile, Link& link) {
    HETERO_CHECK(table.need({"from", "to"}));
    link.from = table.text("from");
    link.to = table.text("to");
    for (const char* end : {"from", "to"}) {
        if (profile.find(table.text(end)) == nullptr)
            return table.wrong(end, "no machine has the name '{}'", printable(table.text(end)));
    }
    HETERO_CHECK(table.number("from_rank", link.from_rank));
    HETERO_CHECK(table.number("to_rank", link.to_rank));
    link.via = table.text("via");
    HETERO_CHECK(read_origin(table, "origin", origin, link.origin));
    link.latency_us = table.figure("latency_us");
    link.gb_per_s = table.figure("gb_per_s");
    link.both_ways_gb_per_s = table.figure("both_ways_gb_per_s");
    link.asymmetric = table.flag("asymmetric").value_or(false);
    return read_curve(table, "message_bytes", "message_gb_per_s", link.sizes);
}

Result<Profile> from_document(const Json& document, const std::string& name) {
    HETERO_CHECK(check_fields(document, name));
    const Table root(&document, name, "");
    int schema = 0;
    HETERO_CHECK(root.number("profile_schema", schema));
    if (schema != profile_schema)
        return fail(Errc::bad_input, "{}: profile_schema is {}, expected {}: make the profile again with this hw-probe",
                    name, root.find("profile_schema") != nullptr ? fmt::format("{}", schema) : "missing",
                    profile_schema);
    Profile profile;
    const Table source = root.table("source");
    HETERO_CHECK(read_origin(source, "kind", profile.origin, profile.origin));
    profile.note = source.text("note");
    profile.quick = source.flag("quick").value_or(false);
    const std::vector<Table> machines = root.tables("machines");
    if (machines.empty()) {
        Machine& machine = profile.machines.emplace_back();
        HETERO_CHECK(read_machine(root, profile.origin, machine));
        machine.name = root.table("host").text("hostname");
        if (machine.name.empty()) machine.name = "machine";
    }
    for (const Table& table : machines) {
        HETERO_CHECK(table.need({"name"}));
        if (profile.find(table.text("name")) != nullptr)
            return table.wrong("name", "another machine is called '{}'", printable(table.text("name")));
        Machine machine;
        HETERO_CHECK(read_machine(table, profile.origin, machine));
        machine.name = table.text("name");
        HETERO_CHECK(table.number("count", machine.count, max_machines));
        if (machine.count == 0) return table.wrong("count", "is 0");
        profile.machines.push_back(std::move(machine));
    }
    for (const Table& table : root.tables("links")) {
        Link link;
        HETERO_CHECK(read_link(table, profile.origin, profile, link));
        profile.links.push_back(std::move(link));
    }
    return profile;
}

}  // namespace

std::string_view to_string(Origin origin) noexcept {
    switch (origin) {
        case Origin::measured:
            return "measured";
        case Origin::published:
            return "published";
        case Origin::specification:
            return "specification";
    }
    return "";
}

const Machine* Profile::find(std::string_view name) const noexcept {
    const auto found = std::find_if(machines.begin(), machines.end(), [&](const Machine& m) { return m.name == name; });
    return found == machines.end() ? nullptr : &*found;
}

Result<Profile> parse_profile(std::string_view text, const std::string& name) try {
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return fail(Errc::bad_input, "{}: empty, expected a hardware profile", name);
    if (text[first] == '{') {
        HETERO_TRY(const Json document, io::parse_json(text, name));
        return from_document(document, name);
    }
    HETERO_TRY(const TomlNode toml, parse_toml(text, name));
    return from_document(to_json(toml), name);
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "{}: not enough memory to read it", name);
}

Result<Profile> read_profile(const std::string& path) {
    HETERO_TRY(const std::string text, read_text_file(path, max_file_bytes, "hardware profile"));
    return parse_profile(text, path);
}

}  // namespace hetero::hw
