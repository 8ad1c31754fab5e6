// The processes that compute one model together: the ranks of one part of an MPI job (between two colons of mpirun,
// say) that were asked for as such.
#pragma once
#include "base/communicator.h"
#include "base/result.h"

namespace hetero::transport {

// This process's group: alone, unless prepare() was given a group_size above 1. A rank that dies, stops or gives up
// ends the calls of all others with an error within TransportOptions::timeout_s; one that gives up with its own code.
[[nodiscard]] Communicator& group() noexcept;

// An error where a rank of the group is lost or has given up: for one that waits for something else than the group.
[[nodiscard]] Status check_group();

// Whether this rank is the one to show an error of its own to the user: of an error that ends a group, one rank is, the
// first of those that can. May wait a moment for the others. Before leave().
[[nodiscard]] bool shows_error() noexcept;
// In MPI_COMM_WORLD; -1 where MPI was not started.
[[nodiscard]] int world_rank() noexcept;

}  // namespace hetero::transport
