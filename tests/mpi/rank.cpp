// One rank of a test job: reads a state from an endpoint, or makes one up, and passes it on or keeps it in a file.
//   mpi_rank [--in ENDPOINT] [--out ENDPOINT] [--seed N] [--mib N] [--MISBEHAVIOUR ...]
// It ends as the tools do: one line on stderr, the error's code as status, leave() last.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "base/log.h"
#include "kv/file.h"
#include "synthetic_state.h"
#include "transport/endpoint.h"
#include "transport/resume.h"

using namespace hetero;

namespace {

struct Options {
    std::string in, out;
    std::uint32_t seed = 1;
    std::uint64_t mib = 32;
    double timeout_s = 10, compute_s = 0;
    bool polite_exit = false, no_mpi = false, garbage = false, hang = false;
    std::string fail;           // gives up with this message before the first layer
    int die_after_layers = -1;  // SIGKILL
    std::string done;           // a file that gets this process's id when the state is through
    double linger_s = 0;        // computes so long after it
    bool die_at_end = false;    // SIGKILL after that
    bool compare = false;       // the input must be what `seed` and `mib` make
    std::string fault;          // a drill
    std::uint64_t max_rate = 0;
    bool measure = false;  // the link, before the state is sent
    bool resume = false;   // what comes from another rank goes on in the file
    std::string pid;       // a file that gets this process's id at once
};

void print_log(log::Level, std::string_view message) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(message.size()), message.data());
}

Options parse(int argc, char** argv) {
    Options o;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        const auto value = [&] { return std::string(i + 1 < argc ? argv[++i] : ""); };
        if (name == "--in") o.in = value();
        if (name == "--out") o.out = value();
        if (name == "--seed") o.seed = static_cast<std::uint32_t>(std::stoul(value()));
        if (name == "--mib") o.mib = std::stoull(value());
        if (name == "--timeout") o.timeout_s = std::stod(value());
        if (name == "--compute") o.compute_s = std::stod(value());
        if (name == "--polite-exit") o.polite_exit = true;
        if (name == "--no-mpi") o.no_mpi = true;
        if (name == "--garbage") o.garbage = true;
        if (name == "--hang") o.hang = true;
        if (name == "--fail") o.fail = value();
        if (name == "--die-after-layers") o.die_after_layers = std::stoi(value());
        if (name == "--done") o.done = value();
        if (name == "--linger") o.linger_s = std::stod(value());
        if (name == "--die-at-end") o.die_at_end = true;
        if (name == "--compare") o.compare = true;
        if (name == "--fault") o.fault = value();
        if (name == "--max-rate") o.max_rate = std::stoull(value());
        if (name == "--measure") o.measure = true;
        if (name == "--resume") o.resume = true;
        if (name == "--pid") o.pid = value();
        if (name == "--debug") log::set_sink(print_log, log::Level::debug);
    }
    return o;
}

void pause_s(double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }

Result<kv::State> state_of(const Options& o) {
    test::StateShape shape;
    shape.layers = 8;
    shape.kv_heads = 4;
    shape.head_dim = 64;
    shape.tokens = {std::max<std::uint64_t>(1, (o.mib << 20) / (8ULL * 2 * 4 * 64 * 2))};
    shape.tokens_per_chunk = 0;
    return test::synthetic_state(shape, o.seed);
}

// Takes part in the meeting of the ranks as hetero-wire(5) describes it, then talks nonsense.
[[noreturn]] void send_garbage(int peer) {
    int provided = 0, size = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    std::int32_t roles[24] = {0x52564B48, 3, 0, 0, 1, 0, 0, 0, 1, 1};
    std::fill(roles + 10, roles + 24, -1);
    roles[17] = peer;  // the first of the outputs
    std::vector<std::int32_t> all(static_cast<std::size_t>(size) * 24);
    MPI_Request meeting = MPI_REQUEST_NULL;
    MPI_Iallgather(roles, sizeof roles, MPI_BYTE, all.data(), sizeof roles, MPI_BYTE, MPI_COMM_WORLD, &meeting);
    MPI_Wait(&meeting, MPI_STATUS_IGNORE);
    MPI_Comm control = MPI_COMM_NULL, data = MPI_COMM_NULL;
    for (MPI_Comm* comm : {&control, &data}) {
        MPI_Comm_idup(MPI_COMM_WORLD, comm, &meeting);
        MPI_Wait(&meeting, MPI_STATUS_IGNORE);
    }
    std::vector<unsigned char> noise(200000, 0x5A);
    for (const int length : {0, 1, 64, 700, 200000}) {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Isend(noise.data(), length, MPI_BYTE, peer, 1, control, &request);
    }
    pause_s(60);
    std::_Exit(0);
}

void maybe_die(const Options& o, std::uint64_t layers) {
    if (o.die_after_layers >= 0 && layers >= static_cast<std::uint64_t>(o.die_after_layers)) ::raise(SIGKILL);
}

Status compare(const Options& o, const kv::State& got) {
    HETERO_TRY(const kv::State expected, state_of(o));
    if (got.header.sequences[0].tokens != expected.header.sequences[0].tokens)
        return fail(Errc::check_failed, "tokens differ");
    for (std::size_t l = 0; l < expected.layers[0].size(); ++l)
        if (!test::same_bytes(expected.layers[0][l], got.layers[0][l]))
            return fail(Errc::check_failed, "layer {} differs", l);
    std::printf("identical\n");
    return {};
}

Status run(const Options& o) {
    transport::TransportOptions options;
    options.timeout_s = o.timeout_s;
    if (!o.fault.empty()) {
        HETERO_TRY(options.faults, transport::parse_faults(o.fault));
    }
    options.max_bytes_per_s = o.max_rate;
    options.confirm_later = true;
    if (o.resume) options.resume = std::make_shared<transport::Resume>(o.out, transport::Resume::Pace{1 << 20, 0.02});
    if (!o.pid.empty()) std::ofstream(o.pid) << ::getpid() << std::endl;
    std::vector<transport::Endpoint> inputs, outputs;
    if (!o.in.empty()) {
        HETERO_TRY(const auto endpoint, transport::parse_endpoint(o.in));
        inputs.push_back(endpoint);
    }
    if (!o.out.empty()) {
        HETERO_TRY(const auto endpoint, transport::parse_endpoint(o.out));
        outputs.push_back(endpoint);
    }
    if (o.no_mpi) {
        pause_s(o.compute_s);
        return {};
    }
    if (o.garbage) send_garbage(outputs[0].rank);
    HETERO_CHECK(transport::prepare(inputs, outputs, options));
    if (o.polite_exit) return {};
    if (!o.fail.empty()) return fail(Errc::bad_input, "{}", o.fail);
    if (o.hang) ::raise(SIGSTOP);
    pause_s(o.compute_s);

    std::unique_ptr<kv::Source> source;
    if (inputs.empty()) {
        HETERO_TRY(kv::State made, state_of(o));
        source = kv::memory_source(std::make_shared<kv::State>(std::move(made)), "synthetic");
    } else {
        HETERO_TRY(source, transport::open_source(inputs[0], options));
    }
    std::unique_ptr<kv::Sink> sink;
    if (o.measure) {
        HETERO_TRY(const auto rate, transport::measure_link(outputs.at(0)));
        if (rate)
            std::printf("measured %s\n", rate->latency_s > 0 && rate->bytes_per_s > 1e6 ? "a link" : "nonsense");
        else
            std::printf("no link\n");
    }
    if (!outputs.empty()) {
        HETERO_TRY(sink, transport::open_sink(outputs[0], options));
        HETERO_CHECK(sink->begin(source->header()));
    }
    kv::State kept;
    kept.header = source->header();
    const std::uint64_t n = transport::total_layers(kept.header);
    for (std::uint64_t i = 0; i < n; ++i) {
        maybe_die(o, i);
        HETERO_TRY(kv::Layer layer, source->read_layer());
        if (sink) HETERO_CHECK(sink->write_layer(layer));
        if (i % kept.header.identity.n_layers == 0) kept.layers.emplace_back();
        if (o.compare) kept.layers.back().push_back(std::move(layer));
    }
    HETERO_CHECK(source->finish());
    if (o.compare) HETERO_CHECK(compare(o, kept));
    if (sink) HETERO_CHECK(sink->commit());
    if (!inputs.empty()) {
        HETERO_CHECK(transport::confirm(inputs[0]));
        if (o.resume)
            std::printf("resumed %llu of %llu\n", static_cast<unsigned long long>(transport::resumed_bytes(inputs[0])),
                        static_cast<unsigned long long>(kept.header.payload_bytes()));
    }
    if (!o.done.empty()) std::ofstream(o.done) << ::getpid() << '\n';
    pause_s(o.linger_s);
    if (o.die_at_end) ::raise(SIGKILL);
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    std::signal(SIGTERM, [](int) {
        io::remove_temporaries_on_signal();
        std::_Exit(128 + SIGTERM);
    });
    const auto report = [](const Status& status) {
        if (!status) std::fprintf(stderr, "mpi_rank: error: %s\n", status.error().message.c_str());
    };
    Status done = run(parse(argc, argv));
    report(done);
    const Status left = transport::leave(done ? nullptr : &done.error());
    report(left);
    if (done) done = left;
    return done ? 0 : static_cast<int>(done.error().code);
}
