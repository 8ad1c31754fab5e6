// The mpi: and mpi-port: endpoints where MPI is compiled in.
#include "base/limits.h"
#include "base/trace.h"
#include "transport/group.h"
#include "transport/mpi_port.h"
#include "transport/mpi_world.h"
#include "transport/registry.h"
#include "transport/shard_links.h"
#include "transport/wire_stream.h"

namespace hetero::transport {
namespace {

std::vector<int> ranks(const std::vector<Endpoint>& endpoints) {
    std::vector<int> out;
    for (const Endpoint& endpoint : endpoints) out.push_back(endpoint.rank);
    return out;
}

// Of several ranks there is one endpoint on a side: they hold one state.
Result<int> ranks_at_once(const std::vector<Endpoint>& endpoints) {
    for (const Endpoint& endpoint : endpoints)
        if (endpoint.ranks > 1 && endpoints.size() > 1)
            return fail(Errc::usage, "{} holds one state, and cannot be named beside {}", to_string(endpoint),
                        to_string(endpoints[&endpoint == &endpoints.front() ? 1 : 0]));
    return endpoints.empty() ? 1 : endpoints.front().ranks;
}

Status prepare_mpi(const std::vector<Endpoint>& inputs, const std::vector<Endpoint>& outputs,
                   const TransportOptions& options) {
    TransportOptions own = options;
    HETERO_TRY(own.input_ranks, ranks_at_once(inputs));
    HETERO_TRY(own.output_ranks, ranks_at_once(outputs));
    return MpiWorld::start(ranks(inputs), ranks(outputs), own);
}

Result<MpiWorld*> world_of(const Endpoint& endpoint) {
    MpiWorld* world = MpiWorld::running();
    if (world == nullptr) return fail(Errc::internal, "{} was not prepared", to_string(endpoint));
    return world;
}

Result<std::unique_ptr<kv::Source>> open_rank_source(const Endpoint& endpoint, const TransportOptions& options) {
    HETERO_TRY(MpiWorld * world, world_of(endpoint));
    HETERO_TRY(MpiWorld::Peer * peer, world->open(endpoint, false));
    ReceiverOptions receiver;
    receiver.expected = options.expected_identity;
    receiver.memory_bytes = read_system_limits().memory_available_bytes;
    return wire_source(world->gate(), *peer->receiver, std::move(receiver), options.resume, options.confirm_later);
}

Result<LinkRate> measure_rank(const Endpoint& endpoint) {
    HETERO_TRY(MpiWorld * world, world_of(endpoint));
    HETERO_TRY(MpiWorld::Peer * peer, world->find(endpoint, true));
    HETERO_TRY(const MpiWorld::Measured measured, world->measure(*peer, {}));
    return measured.rate;
}

Result<std::unique_ptr<kv::Sink>> open_rank_sink(const Endpoint& endpoint) {
    HETERO_TRY(MpiWorld * world, world_of(endpoint));
    HETERO_TRY(MpiWorld::Peer * peer, world->open(endpoint, true));
    const auto measure = [endpoint] { return measure_rank(endpoint); };
    return wire_sink(world->gate(), *peer->sender, {.checksums = true, .measure = measure});
}

// Where shards are exchanged, of this rank.
const ShardSides* sides_of(const Endpoint& endpoint, bool reads) {
    const MpiWorld* world = MpiWorld::running();
    if (endpoint.kind != EndpointKind::mpi || world == nullptr || !world->shard_sides(reads)) return nullptr;
    return &*world->shard_sides(reads);
}

// One rank of several.
Endpoint at_rank(const Endpoint& endpoint, int rank) {
    Endpoint one = endpoint;
    one.rank = rank;
    one.ranks = 1;
    return one;
}

Result<std::unique_ptr<kv::Source>> open_mpi_source(const Endpoint& endpoint, const TransportOptions& options) {
    const ShardSides* sides = sides_of(endpoint, true);
    if (sides == nullptr) return open_rank_source(endpoint, options);
    // Senders end their links one after the other: nobody may wait for another receiver before it confirms.
    TransportOptions own = options;
    own.confirm_later = false;
    own.resume = nullptr;
    const auto open = [&](int rank) { return open_rank_source(at_rank(endpoint, rank), own); };
    return shard_source(*sides, MpiWorld::running()->rank(), open);
}

Result<std::unique_ptr<kv::Sink>> open_mpi_sink(const Endpoint& endpoint, const TransportOptions&) {
    const ShardSides* sides = sides_of(endpoint, false);
    if (sides == nullptr) return open_rank_sink(endpoint);
    const auto open = [&](int rank) { return open_rank_sink(at_rank(endpoint, rank)); };
    return shard_sink(*sides, MpiWorld::running()->rank(), open);
}

Status confirm_mpi(const Endpoint& endpoint) {
    if (sides_of(endpoint, true) != nullptr) return {};  // each link has been, with its state
    HETERO_TRY(MpiWorld * world, world_of(endpoint));
    HETERO_TRY(MpiWorld::Peer * peer, world->find(endpoint, false));
    return confirm(world->gate(), *peer->receiver);
}

std::uint64_t resumed_mpi_bytes(const Endpoint& endpoint) {
    MpiWorld* world = MpiWorld::running();
    if (world == nullptr) return 0;
    std::uint64_t bytes = 0;
    for (const bool sending : {false, true}) {
        if (sides_of(endpoint, !sending) != nullptr) continue;
        const auto peer = world->find(endpoint, sending);
        const auto lock = world->gate().enter();
        if (peer) bytes += sending ? (*peer)->sender->kept_bytes() : (*peer)->receiver->kept_bytes();
    }
    return bytes;
}

bool mpi_output_reads_device_memory(const Endpoint& output) {
    MpiWorld* world = MpiWorld::running();
    if (world == nullptr || sides_of(output, false) != nullptr) return false;
    const auto peer = world->find(output, true);
    if (!peer) return false;
    const auto lock = world->gate().enter();
    return (*peer)->sender->link().reads_device_memory();
}

Result<LinkRate> measure_mpi(const Endpoint& endpoint) {
    if (sides_of(endpoint, false) != nullptr)
        return fail(Errc::usage, "{}: links of several ranks are not measured", to_string(endpoint));
    return measure_rank(endpoint);
}

std::optional<TransferStats> mpi_stats(const Endpoint& endpoint, bool sending) {
    MpiWorld* world = MpiWorld::running();
    if (world == nullptr || sides_of(endpoint, !sending) != nullptr) return std::nullopt;
    const auto peer = world->find(endpoint, sending);
    return peer ? std::optional(world->transfer_stats(**peer, sending)) : std::nullopt;
}

Status join_mpi_time_line(const Endpoint& input) {
    if (sides_of(input, true) != nullptr) return {};  // every sender has a clock of its own
    HETERO_TRY(MpiWorld * world, world_of(input));
    HETERO_TRY(MpiWorld::Peer * peer, world->find(input, false));
    HETERO_TRY(const auto offset, world->clock_offset(*peer));
    if (offset) trace::set_offset(*offset);
    return {};
}

Status leave_mpi(const Error* error) noexcept {
    MpiWorld* world = MpiWorld::running();
    return world == nullptr ? Status{} : world->leave(error);
}

// A process of another job is a peer as any other, once it has been joined.
constexpr EndpointType over_mpi(EndpointKind kind, decltype(EndpointType::parse) parse,
                                decltype(EndpointType::text) text, decltype(EndpointType::prepare) prepare,
                                decltype(EndpointType::leave) leave) {
    return {.kind = kind,
            .parse = parse,
            .text = text,
            .prepare = prepare,
            .open_source = open_mpi_source,
            .open_sink = open_mpi_sink,
            .leave = leave,
            .measure = measure_mpi,
            .stats = mpi_stats,
            .join_time_line = join_mpi_time_line,
            .confirm = confirm_mpi,
            .resumed_bytes = resumed_mpi_bytes,
            .reads_device_memory = mpi_output_reads_device_memory};
}

}  // namespace

const EndpointType mpi_endpoint =
    over_mpi(EndpointKind::mpi, parse_mpi_endpoint, mpi_endpoint_text, prepare_mpi, leave_mpi);
const EndpointType mpi_port_endpoint = over_mpi(EndpointKind::mpi_port, parse_port_endpoint, port_endpoint_text,
                                                prepare_ports, nullptr);  // leave_mpi() leaves both

Communicator& group() noexcept {
    MpiWorld* world = MpiWorld::running();
    return world == nullptr ? single_process() : world->group();
}

Status check_group() {
    MpiWorld* world = MpiWorld::running();
    return world == nullptr ? Status{} : world->check_group();
}

int world_rank() noexcept {
    MpiWorld* world = MpiWorld::running();
    return world == nullptr ? -1 : world->rank();
}

bool shows_error() noexcept {
    MpiWorld* world = MpiWorld::running();
    return world == nullptr || world->shows_error();
}

}  // namespace hetero::transport
