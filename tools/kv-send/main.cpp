// kv-send: moves a KV state between endpoints, bit for bit.
#include <chrono>

#include "common/endpoints.h"
#include "common/tool.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

struct SendOptions {
    std::string input, output;
    TransferOptions transfer;
};

Status send(Tool& tool, const SendOptions& options) {
    if (options.output.empty()) return fail(Errc::usage, "no output: give an endpoint with -o");
    HETERO_TRY(const Endpoints endpoints, prepare_endpoints(tool, {options.input}, {options.output}, options.transfer));
    const auto start = std::chrono::steady_clock::now();
    HETERO_TRY(auto source, transport::open_source(endpoints.inputs.front(), options.transfer.transport()));
    HETERO_TRY(auto sink, transport::open_sink(endpoints.outputs.front(), options.transfer.transport()));
    HETERO_CHECK(copy_state(*source, *sink));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    const std::uint64_t bytes = source->header().payload_bytes();
    const double rate = static_cast<double>(bytes) / seconds / 1e9;
    Json& report = tool.report();
    report["from"] = transport::to_string(endpoints.inputs.front());
    report["to"] = transport::to_string(endpoints.outputs.front());
    report["sequences"] = source->header().sequences.size();
    report["bytes"] = bytes;
    report["seconds"] = number(seconds);
    report["gb_per_s"] = number(rate);
    tool.note("{} bytes in {:.4f} s, {:.3f} GB/s", bytes, seconds, rate);
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    Tool tool("kv-send", "Moves a KV state between endpoints (file, pipe, MPI rank) without changing it.");
    SendOptions options;
    OptionTable& table = tool.options();
    table.heading("States");
    table.positional("IN", &options.input, true, "the state: a file, - (stdin) or mpi:RANK");
    table.text("-o,--output", "OUT", &options.output, "where it goes: a file, - (stdout) or mpi:RANK").completion =
        Completion::file;
    table.heading("Transfer");
    add_transfer_options(table, options.transfer, true);
    return tool.run(argc, argv, [&] { return send(tool, options); });
}
