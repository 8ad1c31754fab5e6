// The mpi: and mpi-port: endpoints where MPI is compiled in.
#include "base/limits.h"
#include "transport/group.h"
#include "transport/mpi_port.h"
#include "transport/mpi_world.h"
#include "transport/registry.h"
#include "transport/wire_stream.h"

namespace hetero::transport {
namespace {

std::vector<int> ranks(const std::vector<Endpoint>& endpoints) {
    std::vector<int> out;
    for (const Endpoint& endpoint : endpoints) out.push_back(endpoint.rank);
    return out;
}

Status prepare_mpi(const std::vector<Endpoint>& inputs, const std::vector<Endpoint>& outputs,
                   const TransportOptions& options) {
    return MpiWorld::start(ranks(inputs), ranks(outputs), options);
}

Result<MpiWorld*> world_of(const Endpoint& endpoint) {
    MpiWorld* world = MpiWorld::running();
    if (world == nullptr) return fail(Errc::internal, "{} was not prepared", to_string(endpoint));
    return world;
}

Result<std::unique_ptr<kv::Source>> open_mpi_source(const Endpoint& endpoint, const TransportOptions& options) {
    HETERO_TRY(MpiWorld * world, world_of(endpoint));
    HETERO_TRY(MpiWorld::Peer * peer, world->open(endpoint, false));
    ReceiverOptions receiver;
    receiver.expected = options.expected_identity;
    receiver.memory_bytes = read_system_limits().memory_available_bytes;
    return wire_source(world->gate(), *peer->receiver, std::move(receiver));
}

Result<std::unique_ptr<kv::Sink>> open_mpi_sink(const Endpoint& endpoint, const TransportOptions&) {
    HETERO_TRY(MpiWorld * world, world_of(endpoint));
    HETERO_TRY(MpiWorld::Peer * peer, world->open(endpoint, true));
    return wire_sink(world->gate(), *peer->sender);
}

Result<LinkRate> measure_mpi(const Endpoint& endpoint) {
    HETERO_TRY(MpiWorld * world, world_of(endpoint));
    HETERO_TRY(MpiWorld::Peer * peer, world->find(endpoint, true));
    constexpr int round_trips = 21;  // the first few warm up
    HETERO_TRY(const MpiWorld::Measured measured, world->measure(*peer, round_trips));
    return measured.rate;
}

Status leave_mpi(const Error* error) noexcept {
    MpiWorld* world = MpiWorld::running();
    return world == nullptr ? Status{} : world->leave(error);
}

}  // namespace

const EndpointType mpi_endpoint = {EndpointKind::mpi, parse_mpi_endpoint, mpi_endpoint_text, prepare_mpi,
                                   open_mpi_source,   open_mpi_sink,      leave_mpi,         measure_mpi};
// Once it has been joined, a process of another job is a peer as any other; leave_mpi() leaves both.
const EndpointType mpi_port_endpoint = {EndpointKind::mpi_port,
                                        parse_port_endpoint,
                                        port_endpoint_text,
                                        prepare_ports,
                                        open_mpi_source,
                                        open_mpi_sink,
                                        nullptr,
                                        measure_mpi};

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
