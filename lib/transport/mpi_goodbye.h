// The last meeting of the ranks of a job: all have come this far. With ULFM (Open MPI 5, mpirun --with-ft ulfm) ranks
// that were killed, or that ended with an error, are not waited for; otherwise mpirun ends the job with such a rank.
// Fault tolerance chapter proposed for MPI: https://fault-tolerance.org
#pragma once
#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace hetero::transport {

class MpiGoodbye {
public:
    enum class State { waiting, met, failed };
#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
    static constexpr bool tolerates_faults = true;
#else
    static constexpr bool tolerates_faults = false;
#endif

    // With fault tolerance of its own: others are called off by revoking it.
    explicit MpiGoodbye(MPI_Comm comm = MPI_COMM_NULL) noexcept : comm_(comm) {}

    bool begin() noexcept { return outcome(MPI_Ibarrier(comm_, &request_), 0) != State::failed; }
    State test() noexcept {
        int done = 0;
        const int code = MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
        return outcome(code, done);
    }
    // We end with an error and do not come: nobody waits for us.
    void call_off() noexcept {
#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
        if (comm_ != MPI_COMM_NULL) MPIX_Comm_revoke(comm_);
#endif
    }

private:
    State outcome(int code, int done) noexcept {
        if (code == MPI_SUCCESS && !called_off_) return done != 0 ? State::met : State::waiting;
#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
        int error_class = MPI_SUCCESS;
        if (code != MPI_SUCCESS) MPI_Error_class(code, &error_class);
        if (called_off_ || error_class == MPIX_ERR_PROC_FAILED || error_class == MPIX_ERR_REVOKED) {
            if (!called_off_) call_off();  // not every rank learns of a dead one by itself
            called_off_ = true;
            return State::met;
        }
#endif
        return State::failed;
    }

    MPI_Comm comm_;
    MPI_Request request_ = MPI_REQUEST_NULL;
    bool called_off_ = false;
};

}  // namespace hetero::transport
