#include "common/endpoints.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/clock.h"
#include "base/threads.h"
#include "base/trace.h"
#include "common/group.h"
#include "common/sources.h"
#include "kv/recycled_layers.h"
#include "transport/group_source.h"

namespace hetero::tool {
namespace {

using Clock = std::chrono::steady_clock;

// Only kv-send reads and writes the layouts of other engines: a state of that name would be taken for one of them.
Status refuse_pages(const Endpoints& endpoints) {
    for (const transport::Endpoint& one : endpoints.inputs)
        if (is_pages(one))
            return fail(Errc::usage, "{0}: the layout of another engine: read it with kv-send {0} -o STATE.h5",
                        one.path);
    for (const transport::Endpoint& one : endpoints.outputs)
        if (is_pages(one))
            return fail(Errc::usage, "{0}: the layout of another engine: write STATE.h5, then kv-send STATE.h5 -o {0}",
                        one.path);
    return {};
}

}  // namespace

bool is_pages(const transport::Endpoint& endpoint) {
    return endpoint.kind == transport::EndpointKind::file && endpoint.path.ends_with(".safetensors");
}

transport::TransportOptions TransferOptions::transport(const Tool& tool) const {
    transport::TransportOptions result;
    result.timeout_s = timeout_s;
    result.meet_s = wait_s;
    result.max_memory_bytes = max_memory_bytes;
    result.overwrite = tool.overwrite();
    result.group_size = static_cast<int>(tp);
    result.shards = hold_shards;
    result.heads = heads;
    result.tool = tool.name();
    result.faults = faults;
    result.max_bytes_per_s = max_bytes_per_s;
    return result;
}

void add_transfer_options(OptionTable& table, TransferOptions& options) {
    table.duration("--timeout", "TIME", &options.timeout_s, "give up on a peer that is silent for so long").setting =
        true;
    table
        .duration("--wait", "TIME", &options.wait_s,
                  "wait so long for the other job of mpi-port:FILE; 0: as long as --timeout")
        .setting = true;
    table.size("--max-memory", "SIZE", &options.max_memory_bytes, "spool a larger state from or to a pipe on disk")
        .setting = true;
    table
        .size("--max-rate", "SIZE", &options.max_bytes_per_s,
              "send no more than so many bytes a second to mpi:RANK; 0: no limit")
        .setting = true;
    const auto set_faults = [&options](std::string_view text) -> Status {
        HETERO_TRY(options.faults, transport::parse_faults(text));
        return {};
    };
    table.custom(
        "--fault", "FAULTS", set_faults, [] { return std::string(); },
        "a drill: damage what is sent to mpi:RANK, as in drop=0.01,flip=0.001,seed=7");
}

void add_tp_options(OptionTable& table, TransferOptions& options) {
    table
        .integer("--tp", "N", &options.tp, 1, 1024,
                 "tensor parallelism: the N ranks of this part of an MPI job compute together")
        .setting = true;
    table.flag("--shards", &options.shards,
               "with --tp: each rank writes its own heads, to a file or (hetero-prefill) to mpi:FIRST-LAST");
}

void add_dry_run_option(OptionTable& table, TransferOptions& options, std::string help) {
    table.flag("--dry-run", &options.dry_run, std::move(help));
}

Result<Endpoints> prepare_endpoints(Tool& tool, const std::vector<std::string>& inputs,
                                    const std::vector<std::string>& outputs, const TransferOptions& options,
                                    Files others) {
    Endpoints result;
    for (const auto& [texts, endpoints] : {std::pair(&inputs, &result.inputs), std::pair(&outputs, &result.outputs)}) {
        for (const std::string& text : *texts) {
            if (text.empty()) continue;
            HETERO_TRY(auto endpoint, transport::parse_endpoint(text));
            endpoints->push_back(std::move(endpoint));
        }
    }
    const auto is_link = [](const transport::Endpoint& one) { return one.is_link(); };
    const bool any_link = std::any_of(result.inputs.begin(), result.inputs.end(), is_link) ||
                          std::any_of(result.outputs.begin(), result.outputs.end(), is_link);
    if (options.dry_run && any_link) {
        return fail(Errc::usage,
                    "--dry-run moves nothing: there is no state to read from, or to write to, an mpi: or mpi-port: "
                    "endpoint");
    }
    if (!options.pages) HETERO_CHECK(refuse_pages(result));
    for (const char* name : {"fault", "max-rate"})
        if (tool.options().on_command_line(name) && !any_link && !options.dry_run)
            return fail(Errc::usage, "--{} is for mpi: and mpi-port: endpoints, and there is none", name);
    const auto is_pipe = [](const transport::Endpoint& one) { return one.kind == transport::EndpointKind::pipe; };
    if (std::count_if(result.inputs.begin(), result.inputs.end(), is_pipe) > 1) {
        return fail(Errc::usage, "stdin can carry one state only");
    }
    if (tool.json() && std::any_of(result.outputs.begin(), result.outputs.end(), is_pipe)) {
        return fail(Errc::usage, "--json and -o - both want stdout; write the document with --report FILE");
    }
    if (options.shards && options.tp == 1)
        return fail(Errc::usage, "--shards: a state of one rank has none; give --tp");
    for (const transport::Endpoint& one : result.inputs)
        if (!one.is_link()) others.read.push_back(one.path);
    for (const transport::Endpoint& one : result.outputs)
        if (!one.is_link()) others.written.push_back(one.path);
    HETERO_CHECK(tool.check_files(std::move(others)));
    transport::TransportOptions transfer = options.transport(tool);
    if (options.shards) transfer.overwrite = io::Overwrite::replace;  // check_shards() knows what is written
    HETERO_CHECK(transport::prepare(result.inputs, result.outputs, transfer));
    HETERO_CHECK(join_group(tool));
    if (options.shards) HETERO_CHECK(check_shards(tool, result.outputs, options.hold_shards));
    return result;
}

Result<OpenedSource> open_source(const Tool& tool, const transport::Endpoint& endpoint,
                                 const transport::TransportOptions& options, std::string label) {
    Communicator& group = transport::group();
    const bool all_read = endpoint.kind == transport::EndpointKind::file;
    if (endpoint.kind == transport::EndpointKind::pipe && group.is_root()) {
        struct pollfd input = {STDIN_FILENO, POLLIN, 0};
        const int patience_ms = group.size() > 1 ? 200 : -1;
        for (int ready = 0; ready == 0 || (ready < 0 && errno == EINTR);) {
            ready = poll(&input, 1, patience_ms);
            HETERO_CHECK(transport::check_group());
        }
    }
    const Clock::time_point start = Clock::now();
    OpenedSource opened;
    Result<std::unique_ptr<kv::Source>> source = nullptr;
    if (all_read || group.is_root()) source = transport::open_source(endpoint, options);
    if (source && trace::on() && group.is_root()) HETERO_CHECK(transport::join_time_line(endpoint));
    if (group.size() > 1 && !all_read) source = transport::hand_out(group, std::move(source));
    if (group.size() > 1 && all_read) HETERO_CHECK(transport::check_same_state(group, source));
    HETERO_TRY(opened.source, std::move(source));
    // An offer from another rank comes when that rank has computed; none of the state has moved so far.
    if (!endpoint.is_link()) opened.seconds = seconds_since(start);
    opened.source = with_progress(tool, std::move(label), std::move(opened.source));
    return opened;
}

std::unique_ptr<kv::Source> ahead(std::unique_ptr<kv::Source> source, const transport::Endpoint& from,
                                  std::uint64_t threads) {
    const bool spare = threads != 1 && default_thread_count() > 1;
    if (!spare || from.is_link() || transport::group().size() > 1) return source;
    return kv::read_ahead(std::move(source));
}

Result<double> copy_state(kv::Source& source, kv::Sink& sink) {
    double seconds = 0;
    const auto copy = [&]() -> Status {
        const std::size_t layers = source.header().sequences.size() * source.header().identity.n_layers;
        const bool late = source.header().late_logits;
        HETERO_CHECK(sink.begin(source.header()));
        const Clock::time_point start = Clock::now();
        kv::RecycledLayers recycled;
        for (std::size_t i = 0; i < layers; ++i) {
            HETERO_TRY(auto remote, source.read_remote());
            if (remote != nullptr) {
                HETERO_CHECK(sink.write_remote(std::move(remote)));
                continue;
            }
            const std::shared_ptr<kv::Layer> layer = recycled.take();
            HETERO_CHECK(source.read_into(*layer));
            HETERO_CHECK(sink.write_shared(layer));
        }
        HETERO_CHECK(source.finish());
        if (late) HETERO_CHECK(sink.complete(source.header()));
        HETERO_CHECK(sink.commit());
        seconds = seconds_since(start);
        return {};
    };
    if (const Status status = copy(); !status) {
        sink.abort(status.error());
        return tl::unexpected(status.error());
    }
    return seconds;
}

}  // namespace hetero::tool
