// Rates between two ranks: plain MPI, and a KV state through the mpi: endpoint (checksums, root and commit included).
//   mpirun -n 2 mpi_bench [--mib N]               one state
//   mpirun -n 2 mpi_bench --raw [--mib N] [--repeat N]   plain MPI
//   mpirun -n N mpi_bench --gather BYTES [--repeat N]    gathers of a group: each rank gives its part of so many bytes
// Plain MPI: 1 MiB messages, eight receives posted ahead, into the same memory as the state's layers.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "synthetic_state.h"
#include "transport/endpoint.h"
#include "transport/group.h"

using namespace hetero;

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void raw(int rank, std::uint64_t mib, int repeat) {
    constexpr int message = 1 << 20, window = 8;
    std::vector<unsigned char> memory(mib << 20, 1);
    std::vector<double> rates;
    for (int r = 0; r <= repeat; ++r) {  // the first one warms up
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = now_s();
        std::vector<MPI_Request> requests(window, MPI_REQUEST_NULL);
        for (std::uint64_t i = 0; i < mib; ++i) {
            MPI_Request& request = requests[i % window];
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            unsigned char* at = memory.data() + (i << 20);
            if (rank == 0) {
                MPI_Isend(at, message, MPI_BYTE, 1, 9, MPI_COMM_WORLD, &request);
            } else {
                MPI_Irecv(at, message, MPI_BYTE, 0, 9, MPI_COMM_WORLD, &request);
            }
        }
        MPI_Waitall(window, requests.data(), MPI_STATUSES_IGNORE);
        char done = 1;
        if (rank == 0)
            MPI_Recv(&done, 1, MPI_BYTE, 1, 10, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(&done, 1, MPI_BYTE, 0, 10, MPI_COMM_WORLD);
        if (r > 0) rates.push_back(static_cast<double>(memory.size()) / (now_s() - begin) / 1e9);
    }
    std::sort(rates.begin(), rates.end());
    if (rank == 0)
        std::printf("plain MPI    %4zu MiB: median %.2f GB/s, best %.2f GB/s of %d\n", memory.size() >> 20,
                    rates[rates.size() / 2], rates.back(), repeat);
}

Status gathers(int ranks, std::size_t bytes, int repeat) {
    transport::TransportOptions options;
    options.group_size = ranks;
    HETERO_CHECK(transport::prepare({}, {}, options));
    Communicator& group = transport::group();
    const std::vector<std::size_t> parts(static_cast<std::size_t>(ranks), bytes / static_cast<std::size_t>(ranks));
    const std::vector<std::byte> mine(parts[0]);
    std::vector<double> us;
    for (int r = -100; r < repeat; ++r) {  // the first ones warm up
        const double begin = now_s();
        HETERO_CHECK(group.all_gather(mine, parts));
        if (r >= 0) us.push_back((now_s() - begin) * 1e6);
    }
    std::sort(us.begin(), us.end());
    if (group.is_root())
        std::printf("gather of %zu bytes, %d ranks: median %.1f us, p90 %.1f us of %d\n", bytes, ranks,
                    us[us.size() / 2], us[us.size() * 9 / 10], repeat);
    return {};
}

Status state(bool sends, std::uint64_t mib) {
    test::StateShape shape;
    shape.layers = 32;
    shape.kv_heads = 8;
    shape.head_dim = 128;
    shape.tokens = {std::max<std::uint64_t>(1, (mib << 20) / (32ULL * 2 * 8 * 128 * 2))};
    shape.tokens_per_chunk = 0;
    transport::TransportOptions options;
    transport::Endpoint peer{transport::EndpointKind::mpi, "", sends ? 1 : 0};
    using List = std::vector<transport::Endpoint>;
    HETERO_CHECK(transport::prepare(sends ? List{} : List{peer}, sends ? List{peer} : List{}, options));
    if (sends) {
        HETERO_TRY(const kv::State made, test::synthetic_state(shape, 1));
        HETERO_TRY(const auto sink, transport::open_sink(peer, options));
        HETERO_CHECK(sink->begin(made.header));
        const double begin = now_s();
        for (const kv::Layer& layer : made.layers[0]) HETERO_CHECK(sink->write_layer(layer));
        const double written = now_s();
        HETERO_CHECK(sink->commit());
        const double end = now_s();
        const auto bytes = static_cast<double>(made.header.payload_bytes());
        std::printf("KV state     %4.0f MiB: %.2f GB/s (%.1f ms, of them %.1f ms for COMMIT)\n", bytes / (1 << 20),
                    bytes / (end - begin) / 1e9, (end - begin) * 1e3, (end - written) * 1e3);
        return {};
    }
    HETERO_TRY(const auto source, transport::open_source(peer, options));
    for (std::uint32_t l = 0; l < source->header().identity.n_layers; ++l) {
        // Only the latest layer is kept, as in a tool that passes layers on.
        HETERO_TRY(const kv::Layer layer, source->read_layer());
    }
    return source->finish();
}

}  // namespace

int main(int argc, char** argv) {
    std::uint64_t mib = 256;
    int repeat = 9;
    bool with_raw = false;
    std::size_t gather_bytes = 0;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--mib") == 0 && i + 1 < argc)
            mib = std::stoull(argv[++i]);
        else if (std::strcmp(argv[i], "--repeat") == 0 && i + 1 < argc)
            repeat = std::atoi(argv[++i]);
        else if (std::strcmp(argv[i], "--gather") == 0 && i + 1 < argc)
            gather_bytes = std::stoull(argv[++i]);
        else if (std::strcmp(argv[i], "--raw") == 0)
            with_raw = true;
    }
    const char* number = std::getenv("OMPI_COMM_WORLD_RANK");
    const int rank = number != nullptr ? std::atoi(number) : 0;
    if (with_raw) {
        int provided = 0;
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
        raw(rank, mib, repeat);
        MPI_Finalize();
        return 0;
    }
    const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
    const Status done =
        gather_bytes > 0 ? gathers(size != nullptr ? std::atoi(size) : 1, gather_bytes, repeat) : state(rank == 0, mib);
    if (!done) std::fprintf(stderr, "mpi_bench: %s\n", done.error().message.c_str());
    const Status left = transport::leave(done ? nullptr : &done.error());
    if (!left) std::fprintf(stderr, "mpi_bench: error: %s\n", left.error().message.c_str());
    return done ? 0 : static_cast<int>(done.error().code);
}
