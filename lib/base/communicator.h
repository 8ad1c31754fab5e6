// Collectives among the processes that compute one model together (tensor parallelism). No MPI types: ranks of an MPI
// job (lib/transport), one process alone, and threads in tests stand behind the same interface.
//
// All ranks make the same calls in the same order, each from one thread at a time. No call waits for a rank that is
// lost: it ends with a peer error that names the rank. A rank that is alive and computes is waited for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace hetero {

class Communicator {
public:
    virtual ~Communicator() = default;

    [[nodiscard]] virtual int rank() const noexcept = 0;
    [[nodiscard]] virtual int size() const noexcept = 0;
    [[nodiscard]] bool is_root() const noexcept { return rank() == 0; }

    // `bytes` says how much each rank gives; `mine` is this rank's. Returns what all gave, in the order of ranks, one
    // after the other; valid until the next call.
    Result<std::span<const std::byte>> all_gather(std::span<const std::byte> mine, std::span<const std::size_t> bytes);
    // The same to rank 0 alone; the others get nothing.
    Result<std::span<const std::byte>> gather(std::span<const std::byte> mine, std::span<const std::size_t> bytes);
    // Rank 0's bytes to all; the others need not know how many.
    Status broadcast(std::vector<std::byte>& bytes);

    // Succeeds where all ranks give success; otherwise each gets the error of the first rank that has one.
    Status agree(const Status& mine);
    // How the group has come to an end, where that is known: by an error of this rank, which is the one to show it to
    // the user, or of another.
    enum class Failure { none, here, elsewhere };
    [[nodiscard]] Failure failure() const noexcept { return failure_; }

    struct Counters {
        std::uint64_t calls = 0, bytes = 0;  // that came from other ranks
        double seconds = 0;                  // in the calls, waiting for ranks that still compute included
    };
    [[nodiscard]] const Counters& counters() const noexcept { return counters_; }

protected:
    enum class To : bool { all, root };
    // As all_gather() and gather(), for more than one rank. Checked: size() sizes, and `mine` is as long as it says.
    virtual Result<std::span<const std::byte>> collect(std::span<const std::byte> mine,
                                                       std::span<const std::size_t> bytes, To to) = 0;
    virtual Status spread(std::span<std::byte> bytes) = 0;  // rank 0's to all, of a length that all know
    void set_failure(Failure failure) noexcept { failure_ = failure; }

private:
    Result<std::span<const std::byte>> counted(std::span<const std::byte> mine, std::span<const std::size_t> bytes,
                                               To to);
    Counters counters_;
    Failure failure_ = Failure::none;
};

// One process alone.
class SingleProcess final : public Communicator {
public:
    [[nodiscard]] int rank() const noexcept override { return 0; }
    [[nodiscard]] int size() const noexcept override { return 1; }

protected:
    Result<std::span<const std::byte>> collect(std::span<const std::byte> mine, std::span<const std::size_t>,
                                               To) override {
        return mine;
    }
    Status spread(std::span<std::byte>) override { return {}; }
};
[[nodiscard]] Communicator& single_process() noexcept;

}  // namespace hetero
