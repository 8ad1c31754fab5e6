// kv-send: moves a KV state between endpoints, bit for bit or quantized on its way.
#include "bench.h"
#include "common/delivery.h"
#include "common/endpoints.h"
#include "common/models.h"
#include "common/sources.h"
#include "common/tool.h"
#include "common/transfers.h"
#include "common/turns.h"
#include "plan.h"
#include "resume.h"
#include "route.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

struct SendOptions {
    std::string input, output, dtype, bench_peer, resume = "auto";
    std::uint64_t split = 1;
    bool requantize = false;
    std::string layout = "nhd", rope = "half";
    std::uint64_t block_tokens = 0, rotary_dims = 0;
    std::vector<std::string> sequences, bench_sizes;
    std::uint64_t threads = 0;
    TransferOptions transfer;
    DeliveryOptions delivery;
    TurnOptions turns;
};

// --dtype converts what is stored here, --wire-dtype what goes to another rank.
Result<Delivery> delivery_of(Tool& tool, const SendOptions& options) {
    HETERO_TRY(Delivery delivery, read_delivery(tool.options(), options.delivery, options.output));
    if (options.requantize && options.dtype.empty()) return fail(Errc::usage, "--requantize goes with --dtype");
    if (options.dtype.empty()) return delivery;
    HETERO_TRY(const transport::Endpoint to, transport::parse_endpoint(options.output.empty() ? "-" : options.output));
    if (to.is_link())
        return fail(Errc::usage, "--dtype is of what is stored; what goes to {} has --wire-dtype", options.output);
    if (delivery.converts()) return fail(Errc::usage, "--dtype and --plan exclude each other");
    auto specs = specs_of_name(options.dtype);
    if (!specs) return fail(Errc::usage, "--dtype: {}; presets are {}", specs.error().message, quant::preset_names());
    delivery.specs = std::move(*specs);
    delivery.requantize = options.requantize;
    return delivery;
}

Result<kv::PageLayout> layout_of(Tool& tool, const SendOptions& options) {
    HETERO_TRY(const transport::Endpoint to, transport::parse_endpoint(options.output.empty() ? "-" : options.output));
    for (const char* name : {"layout", "block", "rope", "rotary-dims"})
        if (tool.options().on_command_line(name) && !is_pages(to))
            return fail(Errc::usage, "--{} is of what is written to FILE.safetensors; states have one layout", name);
    if (options.rotary_dims != 0 && options.rope == "half")
        return fail(Errc::usage, "--rotary-dims goes with --rope interleaved");
    return kv::PageLayout{options.layout == "hnd", static_cast<std::uint32_t>(options.block_tokens),
                          options.rope == "interleaved", static_cast<std::uint32_t>(options.rotary_dims)};
}

Status send(Tool& tool, const SendOptions& options, Turns* turns = nullptr) {
    if (!options.bench_peer.empty()) {
        if (!options.input.empty() || !options.output.empty())
            return fail(Errc::usage, "--bench measures a link and takes no state");
        for (const char* name : {"sequence", "dtype", "wire-dtype", "plan", "split", "dry-run", "max-rate", "resume"})
            if (tool.options().on_command_line(name))
                return fail(Errc::usage, "--{} is of a state; --bench measures a link and takes no state", name);
        return bench(tool, options.bench_peer, options.bench_sizes, options.transfer);
    }
    if (!options.bench_sizes.empty()) return fail(Errc::usage, "--bench-size goes with --bench");
    if (options.input.empty()) return fail(Errc::usage, "IN is missing; see --help");
    const bool dry_run = options.transfer.dry_run;
    if (options.output.empty() && !dry_run) return fail(Errc::usage, "no output: give an endpoint with -o");
    HETERO_TRY(const Delivery delivery, delivery_of(tool, options));
    HETERO_TRY(const kv::PageLayout layout, layout_of(tool, options));
    HETERO_TRY(Route route, Route::plan(options.input, options.output, options.split, layout, options.transfer));
    if (delivery.automatic && route.over_mpi_sets())
        return fail(Errc::usage, "--wire-dtype auto: links of several ranks are not measured; name the representation");
    std::vector<std::string> outputs = route.outputs();
    TransferOptions own = route.transfer();
    std::optional<transport::Endpoint> planned;
    own.pages = true;
    if (dry_run) own.tp = 1;
    if (dry_run && !options.output.empty()) {
        HETERO_TRY(planned, transport::parse_endpoint(options.output));
        if (planned->is_link()) outputs.clear();  // MPI is not started for a plan
        if (delivery.automatic)
            return fail(Errc::usage, "--dry-run starts no link that could choose: name the representation");
    }
    HETERO_TRY(const Endpoints endpoints,
               prepare_endpoints(tool, {options.input}, outputs, own, {options.delivery.plans, {}}));
    if (turns != nullptr) turns->met();
    const bool to_link =
        planned ? planned->is_link() : !endpoints.outputs.empty() && endpoints.outputs.front().is_link();
    if (delivery.converts() && !to_link && options.dtype.empty()) {
        return fail(Errc::usage, "--plan is for what goes to mpi:RANK; kv-quantize --plan stores a state");
    }
    transport::TransportOptions transfer = own.transport(tool);
    transfer.confirm_later = true;
    const bool as_it_is = options.sequences.empty() && !delivery.converts() && route.is_plain();
    HETERO_CHECK(plan_resume(tool, options.resume, endpoints, as_it_is, transfer));
    HETERO_TRY(auto opened, route.open_input(tool, endpoints.inputs.front(), transfer));
    HETERO_TRY(auto source, select_sequences(std::move(opened.source), options.sequences));
    source = ahead(std::move(source), endpoints.inputs.front(), options.threads);
    if (delivery.specs) HETERO_CHECK(check_specs(tool, *delivery.specs, source->header().identity));
    std::unique_ptr<kv::Sink> sink = discarding_sink();
    if (!dry_run) {
        HETERO_TRY(sink, route.open_output(tool, endpoints.outputs, transfer));
    }
    const transport::Endpoint to = dry_run ? transport::Endpoint{} : endpoints.outputs.front();
    HETERO_TRY(const Delivered delivered, deliver(tool, delivery, *source, *sink, to, options.threads));
    HETERO_CHECK(transport::confirm(endpoints.inputs.front()));
    const double seconds = opened.seconds + delivered.seconds;

    const std::uint64_t bytes = delivered.header.payload_bytes();
    Json& report = tool.report();
    report["from"] = transport::to_string(endpoints.inputs.front());
    report["to"] = options.output.empty() ? Json(nullptr) : Json(options.output);
    if (dry_run) report["dry_run"] = true;
    const std::uint64_t resumed = report_resumed(tool, endpoints, bytes);
    const double rate = static_cast<double>(bytes - resumed) / seconds / 1e9;
    report["sequences"] = source->header().sequences.size();
    report["bytes"] = bytes;
    report["seconds"] = dry_run ? Json(nullptr) : number(seconds);
    report["gb_per_s"] = dry_run ? Json(nullptr) : number(rate);
    // What the measurement of the link tells, where there was one.
    const Json link = report.value("wire", Json::object());
    const Json raw = link.value("link_gb_per_s", Json());
    report["raw_gb_per_s"] = raw;
    report["ratio"] = raw.is_number() && !dry_run ? number(rate / raw.get<double>()) : Json(nullptr);
    report["latency_us_p50"] = link.value("latency_us", Json());
    report["latency_us_p99"] = nullptr;
    if (dry_run) {
        HETERO_CHECK(
            plan(tool, route, endpoints.inputs.front(), source->header(), delivered.header, planned, options.threads));
        tool.note("dry run: {} bytes", bytes);
        return {};
    }
    trace_transfers(endpoints);
    tool.note("{} bytes in {:.4f} s, {:.3f} GB/s", bytes - resumed, seconds, rate);
    return {};
}

Status send_in_turn(Tool& tool, SendOptions& options) {
    if (options.input.empty()) return fail(Errc::usage, "IN is missing; see --help");
    if (options.output.empty()) return fail(Errc::usage, "no output: give files with -o, as in -o out-%n.h5");
    HETERO_TRY(Turns turns, Turns::start(tool, options.turns, options.input, options.output, options.transfer));
    HETERO_TRY(const bool turn, turns.next(tool, options.output));
    return turn ? send(tool, options, &turns) : Status{};
}

}  // namespace

int main(int argc, char** argv) {
    Tool tool("kv-send",
              "Moves a KV state between endpoints (file, pipe, MPI rank), bit for bit unless asked to quantize.");
    SendOptions options;
    OptionTable& table = tool.options();
    table.heading("States");
    table.positional("IN", &options.input, false,
                     "the state: FILE, FILE.safetensors, - (stdin), mpi:RANK, mpi:FIRST-LAST or mpi-port:FILE");
    table
        .text("-o,--output", "OUT", &options.output,
              "where it goes: FILE, FILE.safetensors, - (stdout), mpi:RANK, mpi:FIRST-LAST or mpi-port:FILE")
        .completion = Completion::file;
    add_sequence_option(table, options.sequences, "send");
    table.heading("Transfer");
    table.text("--dtype", "CODEC|PRESET", &options.dtype, "convert what is written to a file or a pipe").setting = true;
    table.flag("--requantize", &options.requantize, "with --dtype: allow quantized to quantized, which adds up errors");
    table
        .integer("--tp", "N", &options.transfer.tp, 1, 1024,
                 "the N ranks of this part of an MPI job hold one shard each, by heads")
        .setting = true;
    table.integer("--split", "N", &options.split, 1, kv::max_ranks,
                  "write N shards by heads, one file for each of N tensor-parallel ranks");
    table.choice("--layout", &options.layout, {"nhd", "hnd"},
                 "of FILE.safetensors: tokens before heads in a block, or heads before tokens");
    table.integer("--block", "TOKENS", &options.block_tokens, 0, 1U << 20,
                  "of FILE.safetensors: tokens of a block; 0: all in one");
    table.choice("--rope", &options.rope, {"half", "interleaved"},
                 "of FILE.safetensors: the halves of K's rotated pairs apart, or side by side");
    table.integer("--rotary-dims", "N", &options.rotary_dims, 0, 1U << 16,
                  "with --rope interleaved: dimensions of a head that are rotated; 0: all");
    add_delivery_options(table, options.delivery);
    add_thread_option(table, &options.threads);
    add_turn_option(table, options.turns);
    add_dry_run_option(table, options.transfer, "read and check the state, print what would be sent, move nothing");
    add_transfer_options(table, options.transfer);
    add_resume_option(table, &options.resume);
    tool.add_trace_option();
    table.heading("Measurement");
    table.text("--bench", "mpi:RANK", &options.bench_peer,
               "measure the link to a rank that does the same, beside plain MPI");
    table.texts("--bench-size", "SIZE", &options.bench_sizes, "in chunks of this size only; may be repeated");
    return tool.run(argc, argv,
                    [&] { return options.turns.in_turn() ? send_in_turn(tool, options) : send(tool, options); });
}
