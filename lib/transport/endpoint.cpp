#include "transport/endpoint.h"

#include <array>
#include <charconv>

#include "transport/group.h"
#include "transport/registry.h"
#include "transport/roles.h"

namespace hetero::transport {
namespace {

// In order of parsing (every text is a file name), and of preparing: mpi last, so that MPI is not started in vain.
const std::array<const EndpointType*, 4>& by_parsing() {
    static const std::array<const EndpointType*, 4> types = {&mpi_endpoint, &mpi_port_endpoint, &pipe_endpoint,
                                                             &file_endpoint};
    return types;
}
const std::array<const EndpointType*, 4>& by_cost() {
    static const std::array<const EndpointType*, 4> types = {&file_endpoint, &pipe_endpoint, &mpi_endpoint,
                                                             &mpi_port_endpoint};
    return types;
}

const EndpointType& type_of(EndpointKind kind) {
    for (const EndpointType* type : by_cost())
        if (type->kind == kind) return *type;
    return file_endpoint;
}

std::vector<Endpoint> of_kind(const std::vector<Endpoint>& endpoints, EndpointKind kind) {
    std::vector<Endpoint> out;
    for (const Endpoint& endpoint : endpoints)
        if (endpoint.kind == kind) out.push_back(endpoint);
    return out;
}

}  // namespace

Result<Endpoint> parse_endpoint(std::string_view text) {
    if (text.empty())
        return fail(Errc::usage, "an endpoint is a file name, \"-\", mpi:RANK or mpi-port:FILE, not an empty text");
    for (const EndpointType* type : by_parsing())
        if (auto parsed = type->parse(text)) return *parsed;
    return fail(Errc::internal, "no endpoint type takes {}", text);
}

std::string to_string(const Endpoint& endpoint) { return type_of(endpoint.kind).text(endpoint); }

std::optional<Result<Endpoint>> parse_mpi_endpoint(std::string_view text) {
    constexpr std::string_view scheme = "mpi:";
    if (!text.starts_with(scheme)) return std::nullopt;
    const std::string_view digits = text.substr(scheme.size());
    Endpoint endpoint;
    endpoint.kind = EndpointKind::mpi;
    const char* const stop = digits.data() + digits.size();
    std::from_chars_result parsed = std::from_chars(digits.data(), stop, endpoint.rank);
    int last = endpoint.rank;
    if (parsed.ec == std::errc{} && parsed.ptr != stop && *parsed.ptr == '-')
        parsed = std::from_chars(parsed.ptr + 1, stop, last);
    if (parsed.ec != std::errc{} || parsed.ptr != stop || endpoint.rank < 0 || last < endpoint.rank ||
        last - endpoint.rank >= static_cast<int>(kv::max_ranks))
        return fail(Errc::usage, "{}: mpi: takes a rank or ranks, as in mpi:1 or mpi:2-5; a file of this name is ./{}",
                    text, text);
    endpoint.ranks = last - endpoint.rank + 1;
    return endpoint;
}

std::string mpi_endpoint_text(const Endpoint& endpoint) { return ranks_text(endpoint.rank, endpoint.ranks); }

std::optional<Result<Endpoint>> parse_port_endpoint(std::string_view text) {
    constexpr std::string_view scheme = "mpi-port:";
    if (!text.starts_with(scheme)) return std::nullopt;
    Endpoint endpoint;
    endpoint.kind = EndpointKind::mpi_port;
    endpoint.path = text.substr(scheme.size());
    if (endpoint.path.empty()) return fail(Errc::usage, "mpi-port: takes a file, as in mpi-port:/shared/a.port");
    return endpoint;
}

std::string port_endpoint_text(const Endpoint& endpoint) { return fmt::format("mpi-port:{}", endpoint.path); }

Status prepare(const std::vector<Endpoint>& inputs, const std::vector<Endpoint>& outputs,
               const TransportOptions& options) {
    if (!(options.timeout_s > 0))
        return fail(Errc::usage, "a timeout of {} s; it has to be more than 0", options.timeout_s);
    if (options.max_memory_bytes < min_pipe_memory_bytes)
        return fail(Errc::usage, "{} bytes of memory for a pipe; at least {} are needed", options.max_memory_bytes,
                    min_pipe_memory_bytes);
    if (options.meet_s < 0) return fail(Errc::usage, "a wait of {} s; it cannot be less than 0", options.meet_s);
    if (options.group_size < 1) return fail(Errc::usage, "a group of {} ranks", options.group_size);
    const auto prepare_one = [&](const EndpointType& type) -> Status {
        const auto in = of_kind(inputs, type.kind), out = of_kind(outputs, type.kind);
        const bool needed = !in.empty() || !out.empty() || (&type == &mpi_endpoint && options.group_size > 1);
        return needed ? type.prepare(in, out, options) : Status{};
    };
    if (options.group_size > 1) HETERO_CHECK(prepare_one(mpi_endpoint));  // tells who is the first
    const auto others = [&]() -> Status {
        if (!group().is_root()) return {};
        for (const EndpointType* type : by_cost())
            if (type != &mpi_endpoint || options.group_size == 1) HETERO_CHECK(prepare_one(*type));
        return {};
    };
    return group().agree(others());
}

Result<std::unique_ptr<kv::Source>> open_source(const Endpoint& endpoint, const TransportOptions& options) {
    return type_of(endpoint.kind).open_source(endpoint, options);
}

Result<std::unique_ptr<kv::Sink>> open_sink(const Endpoint& endpoint, const TransportOptions& options) {
    return type_of(endpoint.kind).open_sink(endpoint, options);
}

Status confirm(const Endpoint& input) {
    const EndpointType& type = type_of(input.kind);
    return type.confirm == nullptr ? Status{} : type.confirm(input);
}

bool reads_device_memory(const Endpoint& output) {
    const EndpointType& type = type_of(output.kind);
    return type.reads_device_memory != nullptr && type.reads_device_memory(output);
}

std::uint64_t resumed_bytes(const Endpoint& endpoint) {
    const EndpointType& type = type_of(endpoint.kind);
    return type.resumed_bytes == nullptr ? 0 : type.resumed_bytes(endpoint);
}

Result<std::optional<LinkRate>> measure_link(const Endpoint& endpoint) {
    const EndpointType& type = type_of(endpoint.kind);
    if (type.measure == nullptr) return std::optional<LinkRate>{};
    HETERO_TRY(const LinkRate rate, type.measure(endpoint));
    return std::optional(rate);
}

std::optional<TransferStats> transfer_stats(const Endpoint& endpoint, bool sending) {
    const EndpointType& type = type_of(endpoint.kind);
    return type.stats == nullptr ? std::nullopt : type.stats(endpoint, sending);
}

Status join_time_line(const Endpoint& input) {
    const EndpointType& type = type_of(input.kind);
    return type.join_time_line == nullptr ? Status{} : type.join_time_line(input);
}

Status leave(const Error* error) noexcept {
    for (const EndpointType* type : by_cost())
        if (type->leave != nullptr) HETERO_CHECK(type->leave(error));
    return {};
}

}  // namespace hetero::transport
