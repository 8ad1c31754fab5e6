#include "common/endpoints.h"

#include <algorithm>

namespace hetero::tool {

transport::TransportOptions TransferOptions::transport() const {
    transport::TransportOptions result;
    result.timeout_s = timeout_s;
    result.max_memory_bytes = max_memory_bytes;
    result.overwrite = force ? io::Overwrite::replace : io::Overwrite::refuse;
    return result;
}

void add_transfer_options(OptionTable& table, TransferOptions& options, bool writes) {
    if (writes) table.flag("--force", &options.force, "replace an output file that is there");
    table.duration("--timeout", "TIME", &options.timeout_s, "give up on a peer that is silent for so long").setting =
        true;
    table.size("--max-memory", "SIZE", &options.max_memory_bytes, "spool a larger state from or to a pipe on disk")
        .setting = true;
}

Result<Endpoints> prepare_endpoints(const Tool& tool, const std::vector<std::string>& inputs,
                                    const std::vector<std::string>& outputs, const TransferOptions& options) {
    Endpoints result;
    for (const auto& [texts, endpoints] : {std::pair(&inputs, &result.inputs), std::pair(&outputs, &result.outputs)}) {
        for (const std::string& text : *texts) {
            if (text.empty()) continue;
            HETERO_TRY(auto endpoint, transport::parse_endpoint(text));
            endpoints->push_back(std::move(endpoint));
        }
    }
    const auto is_pipe = [](const transport::Endpoint& one) { return one.kind == transport::EndpointKind::pipe; };
    if (std::count_if(result.inputs.begin(), result.inputs.end(), is_pipe) > 1) {
        return fail(Errc::usage, "stdin can carry one state only");
    }
    if (tool.json() && std::any_of(result.outputs.begin(), result.outputs.end(), is_pipe)) {
        return fail(Errc::usage, "--json and -o - both want stdout; write the document with --report FILE");
    }
    HETERO_CHECK(transport::prepare(result.inputs, result.outputs, options.transport()));
    return result;
}

Status copy_state(kv::Source& source, kv::Sink& sink) {
    const auto copy = [&]() -> Status {
        const std::size_t layers = source.header().sequences.size() * source.header().identity.n_layers;
        HETERO_CHECK(sink.begin(source.header()));
        for (std::size_t i = 0; i < layers; ++i) {
            HETERO_TRY(const kv::Layer layer, source.read_layer());
            HETERO_CHECK(sink.write_layer(layer));
        }
        HETERO_CHECK(source.finish());
        return sink.commit();
    };
    Status status = copy();
    if (!status) sink.abort(status.error());
    return status;
}

}  // namespace hetero::tool
