// The kinds of endpoints: one file and one line in endpoint.cpp each.
#pragma once
#include <optional>

#include "transport/endpoint.h"

namespace hetero::transport {

struct EndpointType {
    EndpointKind kind;
    // Nothing: the text names an endpoint of another kind.
    std::optional<Result<Endpoint>> (*parse)(std::string_view text);
    std::string (*text)(const Endpoint& endpoint);
    // All inputs and outputs of this kind; not called when there are none.
    Status (*prepare)(const std::vector<Endpoint>& inputs, const std::vector<Endpoint>& outputs,
                      const TransportOptions& options);
    Result<std::unique_ptr<kv::Source>> (*open_source)(const Endpoint& endpoint, const TransportOptions& options);
    Result<std::unique_ptr<kv::Sink>> (*open_sink)(const Endpoint& endpoint, const TransportOptions& options);
    Status (*leave)(const Error* error) noexcept = nullptr;  // null: with another kind, or nothing to do
    // All null where there is no link.
    Result<LinkRate> (*measure)(const Endpoint& endpoint) = nullptr;  // of an output
    std::optional<TransferStats> (*stats)(const Endpoint& endpoint, bool sending) = nullptr;
    Status (*join_time_line)(const Endpoint& input) = nullptr;
    Status (*confirm)(const Endpoint& endpoint) = nullptr;  // of an input; null: its other side does not wait for it
    std::uint64_t (*resumed_bytes)(const Endpoint& endpoint) = nullptr;
    bool (*reads_device_memory)(const Endpoint& output) = nullptr;
};

extern const EndpointType file_endpoint, pipe_endpoint, mpi_endpoint, mpi_port_endpoint;

// "mpi:RANK" and "mpi-port:FILE"; the same with and without MPI.
std::optional<Result<Endpoint>> parse_mpi_endpoint(std::string_view text);
std::string mpi_endpoint_text(const Endpoint& endpoint);
std::optional<Result<Endpoint>> parse_port_endpoint(std::string_view text);
std::string port_endpoint_text(const Endpoint& endpoint);

}  // namespace hetero::transport
