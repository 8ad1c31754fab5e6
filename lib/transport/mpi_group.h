// A group over an MPI communicator.
#pragma once
#include <mpi.h>

#include <optional>
#include <vector>

#include "base/communicator.h"
#include "transport/gate.h"
#include "transport/link.h"

namespace hetero::transport {

// The calling thread posts a collective and tests it itself, under the gate, which every MPI call is made under: to
// wake the moving thread and be woken by it would take longer than the collective. It never waits inside MPI, and looks
// at the links to the other ranks between tests: they carry heartbeats and the reason of a rank that gives up.
class MpiGroup final : public Communicator {
public:
    // `links`: to every other rank; both outlive the group. What a collective reads and writes is kept to the end of
    // the process, as MPI may still have it in hand after an error.
    MpiGroup(Gate& gate, MPI_Comm comm, int rank, int size, std::vector<const Link*> links);

    [[nodiscard]] int rank() const noexcept override { return rank_; }
    [[nodiscard]] int size() const noexcept override { return size_; }

    // Under the gate. Why the group has ended: what a rank that gave up said (with its code), else that one is lost.
    [[nodiscard]] std::optional<Error> end_reason() const;
    // Under the gate. A rank that gave up has said why.
    [[nodiscard]] bool told() const noexcept;
    // Under the gate. A rank before this one may still say why it gives up.
    [[nodiscard]] bool others_may_tell() const noexcept;

protected:
    Result<std::span<const std::byte>> collect(std::span<const std::byte> mine, std::span<const std::size_t> bytes,
                                               To to) override;
    Status spread(std::span<std::byte> bytes) override;

private:
    Status complete(MPI_Request& request, const char* what, Gate::Lock& lock);
    Status check(double waited_s);

    Gate& gate_;
    MPI_Comm comm_;
    int rank_, size_;
    std::vector<const Link*> links_;  // [rank of the group], null for this one
    std::vector<std::byte> mine_, all_;
    std::vector<int> counts_, places_;
};

}  // namespace hetero::transport
