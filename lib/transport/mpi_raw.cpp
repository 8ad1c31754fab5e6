#include "transport/mpi_raw.h"

#include <algorithm>

#include "base/clock.h"
#include "transport/mpi_call.h"

namespace hetero::transport {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int tag_words = 8, tag_ping = 9, tag_stream = 10;  // below those of hkv-mpi's chunks
constexpr std::size_t window = 8;

}  // namespace

Status RawMpi::complete(std::span<MPI_Request> requests) const {
    const auto begin = Clock::now();
    for (std::uint32_t i = 0;; ++i) {
        int done = 0;
        HETERO_MPI_CHECK(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
                         "MPI_Testall");
        if (done != 0) return {};
        if (i % 1024 != 1023 || seconds_since(begin) <= timeout_s_) continue;
        for (MPI_Request& request : requests) {  // what comes late must not find memory that is used for something else
            if (request == MPI_REQUEST_NULL) continue;
            MPI_Cancel(&request);
            MPI_Request_free(&request);
        }
        return fail(Errc::peer, "rank {}: no answer to plain MPI messages for {:.3g} s", peer_, timeout_s_);
    }
}

Status RawMpi::send_words(const Words& words) {
    MPI_Request request = MPI_REQUEST_NULL;
    HETERO_MPI_CHECK(MPI_Isend(words.data(), sizeof words, MPI_BYTE, peer_, tag_words, comm_, &request), "MPI_Isend");
    return complete({&request, 1});
}

Result<RawMpi::Words> RawMpi::receive_words() {
    Words words{};
    MPI_Request request = MPI_REQUEST_NULL;
    HETERO_MPI_CHECK(MPI_Irecv(words.data(), sizeof words, MPI_BYTE, peer_, tag_words, comm_, &request), "MPI_Irecv");
    HETERO_CHECK(complete({&request, 1}));
    return words;
}

Result<std::optional<RawMpi::Words>> RawMpi::poll_words() {
    int there = 0;
    HETERO_MPI_CHECK(MPI_Iprobe(peer_, tag_words, comm_, &there, MPI_STATUS_IGNORE), "MPI_Iprobe");
    if (there == 0) return std::optional<Words>{};
    HETERO_TRY(const Words words, receive_words());
    return std::optional(words);
}

Status RawMpi::meet() {
    std::array<MPI_Request, 2> requests = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    std::byte in{}, out{};
    HETERO_MPI_CHECK(MPI_Irecv(&in, 1, MPI_BYTE, peer_, tag_ping, comm_, requests.data()), "MPI_Irecv");
    HETERO_MPI_CHECK(MPI_Isend(&out, 1, MPI_BYTE, peer_, tag_ping, comm_, requests.data() + 1), "MPI_Isend");
    return complete(requests);
}

Result<std::vector<double>> RawMpi::ping(int count) {
    HETERO_CHECK(meet());
    std::array<std::byte, 64> bytes{};
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
        const auto begin = Clock::now();
        std::array<MPI_Request, 2> requests = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        HETERO_MPI_CHECK(MPI_Isend(bytes.data(), bytes.size(), MPI_BYTE, peer_, tag_ping, comm_, requests.data()),
                         "MPI_Isend");
        HETERO_MPI_CHECK(MPI_Irecv(bytes.data(), bytes.size(), MPI_BYTE, peer_, tag_ping, comm_, requests.data() + 1),
                         "MPI_Irecv");
        HETERO_CHECK(complete(requests));
        seconds.push_back(seconds_since(begin));
    }
    return seconds;
}

Status RawMpi::answer(int count) {
    HETERO_CHECK(meet());
    std::array<std::byte, 64> bytes{};
    for (int i = 0; i < count; ++i) {
        MPI_Request request = MPI_REQUEST_NULL;
        HETERO_MPI_CHECK(MPI_Irecv(bytes.data(), bytes.size(), MPI_BYTE, peer_, tag_ping, comm_, &request),
                         "MPI_Irecv");
        HETERO_CHECK(complete({&request, 1}));
        HETERO_MPI_CHECK(MPI_Isend(bytes.data(), bytes.size(), MPI_BYTE, peer_, tag_ping, comm_, &request),
                         "MPI_Isend");
        HETERO_CHECK(complete({&request, 1}));
    }
    return {};
}

template <class Blocks, class Post>
Status RawMpi::stream(Blocks& memory, std::uint64_t message, std::uint64_t bytes, Post post) const {
    std::array<MPI_Request, window> requests;
    requests.fill(MPI_REQUEST_NULL);
    const std::uint64_t places = memory.front().size() / message;
    for (std::uint64_t i = 0, left = bytes; left > 0; ++i) {
        const std::uint64_t n = std::min(left, message);
        HETERO_CHECK(complete({&requests[i % window], 1}));
        auto& block = memory[static_cast<std::size_t>(i / places % memory.size())];
        HETERO_CHECK(post(block.data() + i % places * message, static_cast<int>(n), &requests[i % window]));
        left -= n;
    }
    return complete(requests);
}

Result<double> RawMpi::send(const Memory& memory, std::uint64_t message, std::uint64_t bytes) {
    HETERO_CHECK(meet());
    const auto begin = Clock::now();
    HETERO_CHECK(stream(memory, message, bytes, [&](const std::byte* at, int n, MPI_Request* request) -> Status {
        HETERO_MPI_CHECK(MPI_Isend(at, n, MPI_BYTE, peer_, tag_stream, comm_, request), "MPI_Isend");
        return {};
    }));
    HETERO_CHECK(receive_words());
    return seconds_since(begin);
}

Status RawMpi::receive(Memory& memory, std::uint64_t message, std::uint64_t bytes) {
    HETERO_CHECK(meet());
    HETERO_CHECK(stream(memory, message, bytes, [&](std::byte* at, int n, MPI_Request* request) -> Status {
        HETERO_MPI_CHECK(MPI_Irecv(at, n, MPI_BYTE, peer_, tag_stream, comm_, request), "MPI_Irecv");
        return {};
    }));
    return send_words({});
}

Result<double> RawMpi::exchange(std::span<const std::byte> out, std::span<std::byte> in, std::uint64_t message,
                                std::uint64_t bytes) {
    HETERO_CHECK(meet());
    const auto begin = Clock::now();
    std::array<std::array<MPI_Request, 2>, window> requests;
    for (auto& pair : requests) pair.fill(MPI_REQUEST_NULL);
    const std::uint64_t places = std::min(out.size(), in.size()) / message;
    for (std::uint64_t i = 0, left = bytes; left > 0; ++i) {
        const std::uint64_t n = std::min(left, message), at = i % places * message;
        auto& pair = requests[i % window];
        HETERO_CHECK(complete(pair));
        HETERO_MPI_CHECK(
            MPI_Irecv(in.data() + at, static_cast<int>(n), MPI_BYTE, peer_, tag_stream, comm_, pair.data()),
            "MPI_Irecv");
        HETERO_MPI_CHECK(
            MPI_Isend(out.data() + at, static_cast<int>(n), MPI_BYTE, peer_, tag_stream, comm_, pair.data() + 1),
            "MPI_Isend");
        left -= n;
    }
    for (auto& pair : requests) HETERO_CHECK(complete(pair));
    HETERO_CHECK(meet());
    return seconds_since(begin);
}

}  // namespace hetero::transport
