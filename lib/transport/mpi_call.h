// Errors of MPI calls as values. The communicators return them: MPI_ERRORS_RETURN.
#pragma once
#include <mpi.h>

#include "base/result.h"

namespace hetero::transport {

// A peer error: "MPI_Test: ..." with MPI's own text.
tl::unexpected<Error> mpi_failure(const char* call, int code);

}  // namespace hetero::transport

// Returns the error of an MPI call from the enclosing function.
#define HETERO_MPI_CHECK(call, function)                                    \
    do {                                                                    \
        if (const int hetero_code = (call); hetero_code != MPI_SUCCESS)     \
            return ::hetero::transport::mpi_failure(function, hetero_code); \
    } while (false)
