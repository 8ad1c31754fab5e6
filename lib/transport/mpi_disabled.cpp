// The mpi: and mpi-port: endpoints where MPI is not compiled in: understood, and refused.
#include "transport/group.h"
#include "transport/link_bench.h"
#include "transport/link_survey.h"
#include "transport/registry.h"

namespace hetero::transport {
namespace {

tl::unexpected<Error> refused(std::string_view what) {
    return fail(Errc::usage,
                "{}: this build has no MPI; configure with -DHETERO_MPI=ON (Debian: libopenmpi-dev, openmpi-bin)",
                what);
}
tl::unexpected<Error> refused(const Endpoint& endpoint) { return refused(to_string(endpoint)); }

Status prepare_mpi(const std::vector<Endpoint>& inputs, const std::vector<Endpoint>& outputs,
                   const TransportOptions& options) {
    if (options.group_size > 1) return refused(fmt::format("--tp {}", options.group_size));
    return refused(inputs.empty() ? outputs.front() : inputs.front());
}
Result<std::unique_ptr<kv::Source>> open_mpi_source(const Endpoint& endpoint, const TransportOptions&) {
    return refused(endpoint);
}
Result<std::unique_ptr<kv::Sink>> open_mpi_sink(const Endpoint& endpoint, const TransportOptions&) {
    return refused(endpoint);
}

constexpr EndpointType refusing(EndpointKind kind, decltype(EndpointType::parse) parse,
                                decltype(EndpointType::text) text) {
    return {.kind = kind,
            .parse = parse,
            .text = text,
            .prepare = prepare_mpi,
            .open_source = open_mpi_source,
            .open_sink = open_mpi_sink};
}

}  // namespace

const EndpointType mpi_endpoint = refusing(EndpointKind::mpi, parse_mpi_endpoint, mpi_endpoint_text);
const EndpointType mpi_port_endpoint = refusing(EndpointKind::mpi_port, parse_port_endpoint, port_endpoint_text);

Result<std::shared_ptr<const void>> start_port_service(const TransportOptions&) { return refused("mpi-port:"); }

Result<LinkBench> bench_link(const Endpoint& peer, const LinkBenchOptions&, const TransportOptions&) {
    return refused(peer);
}

Result<int> job_size() { return refused("a survey of links"); }
Result<std::vector<SurveyedLink>> survey_links(const SurveyOptions&) { return refused("a survey of links"); }

Communicator& group() noexcept { return single_process(); }
Status check_group() { return {}; }
bool shows_error() noexcept { return true; }
int world_rank() noexcept { return -1; }

}  // namespace hetero::transport
