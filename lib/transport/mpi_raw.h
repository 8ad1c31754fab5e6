// Plain MPI between two ranks, to compare with: what a program without a protocol of its own would do.
#pragma once
#include <mpi.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"

namespace hetero::transport {

class RawMpi {
public:
    // Calls give up when the peer does not answer for so long.
    RawMpi(MPI_Comm comm, int peer, double timeout_s) : comm_(comm), peer_(peer), timeout_s_(timeout_s) {}

    using Words = std::array<std::uint64_t, 4>;
    Status send_words(const Words& words);
    Result<Words> receive_words();
    Result<std::optional<Words>> poll_words();  // nothing: they have not come yet
    // Both ranks have come this far.
    Status meet();

    // Round trips of 64 bytes, one by one, in seconds. The other rank calls answer().
    Result<std::vector<double>> ping(int count);
    Status answer(int count);
    // `bytes` in messages of `message` bytes at most, a window of them in flight, over and over out of `memory`; until
    // the other rank has got all. Blocks of memory are of one size, a multiple of `message`, which is below 2 GiB.
    // Returns the seconds.
    using Memory = std::vector<std::vector<std::byte>>;
    Result<double> send(const Memory& memory, std::uint64_t message, std::uint64_t bytes);
    Status receive(Memory& memory, std::uint64_t message, std::uint64_t bytes);
    // Both directions at once, `bytes` in each; the other rank does the same. Returns the seconds until both are done.
    Result<double> exchange(std::span<const std::byte> out, std::span<std::byte> in, std::uint64_t message,
                            std::uint64_t bytes);

private:
    Status complete(std::span<MPI_Request> requests) const;
    template <class Blocks, class Post>
    Status stream(Blocks& memory, std::uint64_t message, std::uint64_t bytes, Post post) const;

    MPI_Comm comm_;
    int peer_;
    double timeout_s_;
};

}  // namespace hetero::transport
