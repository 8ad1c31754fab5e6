// kv-send: moves a KV state between endpoints, bit for bit.
#include "bench.h"
#include "common/endpoints.h"
#include "common/sources.h"
#include "common/tool.h"
#include "plan.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

struct SendOptions {
    std::string input, output, bench_peer;
    std::vector<std::string> sequences, bench_sizes;
    TransferOptions transfer;
};

Status send(Tool& tool, const SendOptions& options) {
    if (!options.bench_peer.empty()) {
        if (!options.input.empty() || !options.output.empty())
            return fail(Errc::usage, "--bench measures a link and takes no state");
        return bench(tool, options.bench_peer, options.bench_sizes, options.transfer);
    }
    if (options.input.empty()) return fail(Errc::usage, "IN is missing; see --help");
    const bool dry_run = options.transfer.dry_run;
    if (options.output.empty() && !dry_run) return fail(Errc::usage, "no output: give an endpoint with -o");
    std::string output = options.output;
    std::optional<transport::Endpoint> planned;
    if (dry_run && !output.empty()) {
        HETERO_TRY(planned, transport::parse_endpoint(output));
        if (planned->kind == transport::EndpointKind::mpi) output.clear();  // MPI is not started for a plan
    }
    HETERO_TRY(const Endpoints endpoints, prepare_endpoints(tool, {options.input}, {output}, options.transfer));
    HETERO_TRY(auto opened, open_source(tool, endpoints.inputs.front(), options.transfer.transport(tool), "send"));
    HETERO_TRY(const auto source, select_sequences(std::move(opened.source), options.sequences));
    std::unique_ptr<kv::Sink> sink = discarding_sink();
    if (!dry_run) {
        HETERO_TRY(sink, transport::open_sink(endpoints.outputs.front(), options.transfer.transport(tool)));
    }
    HETERO_TRY(const double copy_seconds, copy_state(*source, *sink));
    const double seconds = opened.seconds + copy_seconds;

    const std::uint64_t bytes = source->header().payload_bytes();
    const double rate = static_cast<double>(bytes) / seconds / 1e9;
    Json& report = tool.report();
    report["from"] = transport::to_string(endpoints.inputs.front());
    report["to"] = options.output.empty() ? Json(nullptr) : Json(options.output);
    if (dry_run) report["dry_run"] = true;
    report["sequences"] = source->header().sequences.size();
    report["bytes"] = bytes;
    report["seconds"] = dry_run ? Json(nullptr) : number(seconds);
    report["gb_per_s"] = dry_run ? Json(nullptr) : number(rate);
    // What only a measurement of the bare transport could tell.
    for (const char* name : {"raw_gb_per_s", "ratio", "latency_us_p50", "latency_us_p99"}) report[name] = nullptr;
    if (dry_run) {
        HETERO_CHECK(plan(tool, endpoints.inputs.front(), source->header(), planned));
        tool.note("dry run: {} bytes", bytes);
        return {};
    }
    tool.note("{} bytes in {:.4f} s, {:.3f} GB/s", bytes, seconds, rate);
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    Tool tool("kv-send", "Moves a KV state between endpoints (file, pipe, MPI rank) without changing it.");
    SendOptions options;
    OptionTable& table = tool.options();
    table.heading("States");
    table.positional("IN", &options.input, false, "the state: a file, - (stdin) or mpi:RANK");
    table.text("-o,--output", "OUT", &options.output, "where it goes: a file, - (stdout) or mpi:RANK").completion =
        Completion::file;
    add_sequence_option(table, options.sequences, "send");
    table.heading("Transfer");
    add_dry_run_option(table, options.transfer, "read and check the state, print what would be sent, move nothing");
    add_transfer_options(table, options.transfer);
    table.heading("Measurement");
    table.text("--bench", "mpi:RANK", &options.bench_peer,
               "measure the link to a rank that does the same, beside plain MPI");
    table.texts("--bench-size", "SIZE", &options.bench_sizes, "in chunks of this size only; may be repeated");
    return tool.run(argc, argv, [&] { return send(tool, options); });
}
