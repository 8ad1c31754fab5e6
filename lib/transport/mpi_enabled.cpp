// The mpi: and mpi-port: endpoints where MPI is compiled in.
#include "base/limits.h"
#include "base/trace.h"
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
    return wire_source(world->gate(), *peer->receiver, std::move(receiver), options.resume, options.confirm_later);
}

Result<LinkRate> measure_mpi(const Endpoint& endpoint) {
    HETERO_TRY(MpiWorld * world, world_of(endpoint));
    HETERO_TRY(MpiWorld::Peer * peer, world->find(endpoint, true));
    constexpr int round_trips = 21;  // the first few warm up
    HETERO_TRY(const MpiWorld::Measured measured, world->measure(*peer, round_trips));
    return measured.rate;
}

Result<std::unique_ptr<kv::Sink>> open_mpi_sink(const Endpoint& endpoint, const TransportOptions&) {
    HETERO_TRY(MpiWorld * world, world_of(endpoint));
    HETERO_TRY(MpiWorld::Peer * peer, world->open(endpoint, true));
    const auto measure = [endpoint]() -> Result<LinkRate> { return measure_mpi(endpoint); };
    return wire_sink(world->gate(), *peer->sender, {.checksums = true, .measure = measure});
}

Status confirm_mpi(const Endpoint& endpoint) {
    HETERO_TRY(MpiWorld * world, world_of(endpoint));
    HETERO_TRY(MpiWorld::Peer * peer, world->find(endpoint, false));
    return confirm(world->gate(), *peer->receiver);
}

std::uint64_t resumed_mpi_bytes(const Endpoint& endpoint) {
    MpiWorld* world = MpiWorld::running();
    if (world == nullptr) return 0;
    std::uint64_t bytes = 0;
    for (const bool sending : {false, true}) {
        const auto peer = world->find(endpoint, sending);
        const auto lock = world->gate().enter();
        if (peer) bytes += sending ? (*peer)->sender->kept_bytes() : (*peer)->receiver->kept_bytes();
    }
    return bytes;
}

std::optional<TransferStats> mpi_stats(const Endpoint& endpoint, bool sending) {
    MpiWorld* world = MpiWorld::running();
    if (world == nullptr) return std::nullopt;
    const auto peer = world->find(endpoint, sending);
    return peer ? std::optional(world->transfer_stats(**peer, sending)) : std::nullopt;
}

Status join_mpi_time_line(const Endpoint& input) {
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

}  // namespace

const EndpointType mpi_endpoint = {EndpointKind::mpi, parse_mpi_endpoint, mpi_endpoint_text, prepare_mpi,
                                   open_mpi_source,   open_mpi_sink,      leave_mpi,         measure_mpi,
                                   mpi_stats,         join_mpi_time_line, confirm_mpi,       resumed_mpi_bytes};
// Once it has been joined, a process of another job is a peer as any other; leave_mpi() leaves both.
const EndpointType mpi_port_endpoint = {EndpointKind::mpi_port,
                                        parse_port_endpoint,
                                        port_endpoint_text,
                                        prepare_ports,
                                        open_mpi_source,
                                        open_mpi_sink,
                                        nullptr,
                                        measure_mpi,
                                        mpi_stats,
                                        join_mpi_time_line,
                                        confirm_mpi,
                                        resumed_mpi_bytes};

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
