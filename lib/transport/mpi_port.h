// mpi-port:FILE: a state goes between two MPI jobs, each a failure domain of its own. The reading side publishes a port
// in FILE and accepts one sender; the writing side takes FILE and connects. See port_file.h.
#pragma once
#include "transport/endpoint.h"

namespace hetero::transport {

// Meets the other job of each endpoint, and makes it a peer of this process.
Status prepare_ports(const std::vector<Endpoint>& inputs, const std::vector<Endpoint>& outputs,
                     const TransportOptions& options);

}  // namespace hetero::transport
