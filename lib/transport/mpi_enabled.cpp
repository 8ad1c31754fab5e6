// The mpi: endpoint where MPI is compiled in.
#include "base/limits.h"
#include "transport/group.h"
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

Result<MpiWorld::Peer*> open_peer(const Endpoint& endpoint, bool sending) {
    MpiWorld* world = MpiWorld::running();
    if (world == nullptr) return fail(Errc::internal, "{} was not prepared", to_string(endpoint));
    return world->open(endpoint.rank, sending);
}

Result<std::unique_ptr<kv::Source>> open_rank_source(const Endpoint& endpoint, const TransportOptions& options) {
    HETERO_TRY(MpiWorld::Peer * peer, open_peer(endpoint, false));
    ReceiverOptions receiver;
    receiver.expected = options.expected_identity;
    receiver.memory_bytes = read_system_limits().memory_available_bytes;
    return wire_source(MpiWorld::running()->gate(), *peer->receiver, std::move(receiver));
}

Result<std::unique_ptr<kv::Sink>> open_rank_sink(const Endpoint& endpoint) {
    HETERO_TRY(MpiWorld::Peer * peer, open_peer(endpoint, true));
    return wire_sink(MpiWorld::running()->gate(), *peer->sender);
}

// Where shards are exchanged, of this rank.
const ShardSides* sides_of(bool reads) {
    const MpiWorld* world = MpiWorld::running();
    return world == nullptr || !world->shard_sides(reads) ? nullptr : &*world->shard_sides(reads);
}

Result<std::unique_ptr<kv::Source>> open_mpi_source(const Endpoint& endpoint, const TransportOptions& options) {
    const ShardSides* sides = sides_of(true);
    if (sides == nullptr) return open_rank_source(endpoint, options);
    const auto open = [&](int rank) {
        Endpoint one = endpoint;
        one.rank = rank;
        one.ranks = 1;
        return open_rank_source(one, options);
    };
    return shard_source(*sides, MpiWorld::running()->rank(), open);
}

Result<std::unique_ptr<kv::Sink>> open_mpi_sink(const Endpoint& endpoint, const TransportOptions&) {
    const ShardSides* sides = sides_of(false);
    if (sides == nullptr) return open_rank_sink(endpoint);
    const auto open = [&](int rank) {
        Endpoint one = endpoint;
        one.rank = rank;
        one.ranks = 1;
        return open_rank_sink(one);
    };
    return shard_sink(*sides, MpiWorld::running()->rank(), open);
}

Result<LinkRate> measure_mpi(const Endpoint& endpoint) {
    if (sides_of(false) != nullptr)
        return fail(Errc::usage, "{}: links of several ranks are not measured", to_string(endpoint));
    MpiWorld* world = MpiWorld::running();
    if (world == nullptr) return fail(Errc::internal, "mpi:{} was not prepared", endpoint.rank);
    constexpr int round_trips = 21;  // the first few warm up
    HETERO_TRY(const MpiWorld::Measured measured, world->measure(endpoint.rank, round_trips));
    return measured.rate;
}

Status leave_mpi(const Error* error) noexcept {
    MpiWorld* world = MpiWorld::running();
    return world == nullptr ? Status{} : world->leave(error);
}

}  // namespace

const EndpointType mpi_endpoint = {EndpointKind::mpi, parse_mpi_endpoint, mpi_endpoint_text, prepare_mpi,
                                   open_mpi_source,   open_mpi_sink,      leave_mpi,         measure_mpi};

Communicator& group() noexcept {
    MpiWorld* world = MpiWorld::running();
    return world == nullptr ? single_process() : world->group();
}

Status check_group() {
    MpiWorld* world = MpiWorld::running();
    return world == nullptr ? Status{} : world->check_group();
}

bool shows_error() noexcept {
    MpiWorld* world = MpiWorld::running();
    return world == nullptr || world->shows_error();
}

}  // namespace hetero::transport
