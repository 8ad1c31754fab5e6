// How long a gather of a group takes, of which each rank gives its part of so many bytes. Links: kv-send --bench.
//   mpirun -n N mpi_bench --gather BYTES [--repeat N]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "transport/endpoint.h"
#include "transport/group.h"

using namespace hetero;

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

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

}  // namespace

int main(int argc, char** argv) {
    int repeat = 1000;
    std::size_t bytes = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (std::strcmp(argv[i], "--repeat") == 0) repeat = std::atoi(argv[i + 1]);
        if (std::strcmp(argv[i], "--gather") == 0) bytes = std::stoull(argv[i + 1]);
    }
    const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
    const Status done = bytes > 0 ? gathers(size != nullptr ? std::atoi(size) : 1, bytes, repeat)
                                  : fail(Errc::usage, "give --gather BYTES");
    if (!done) std::fprintf(stderr, "mpi_bench: %s\n", done.error().message.c_str());
    const Status left = transport::leave(done ? nullptr : &done.error());
    if (!left) std::fprintf(stderr, "mpi_bench: error: %s\n", left.error().message.c_str());
    return done ? 0 : static_cast<int>(done.error().code);
}
