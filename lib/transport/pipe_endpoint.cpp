// "-": stdin or stdout.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "transport/pipe.h"
#include "transport/registry.h"

namespace hetero::transport {
namespace {

std::optional<Result<Endpoint>> parse_pipe(std::string_view text) {
    if (text != "-") return std::nullopt;
    Endpoint endpoint;
    endpoint.kind = EndpointKind::pipe;
    return endpoint;
}

std::string pipe_text(const Endpoint&) { return "-"; }

Status prepare_pipe(const std::vector<Endpoint>& inputs, const std::vector<Endpoint>& outputs,
                    const TransportOptions&) {
    if (inputs.size() > 1 || outputs.size() > 1)
        return fail(Errc::usage, "-: {} can carry one state, not {}", inputs.size() > 1 ? "stdin" : "stdout",
                    std::max(inputs.size(), outputs.size()));
    if (!inputs.empty() && ::isatty(STDIN_FILENO) != 0)
        return fail(Errc::usage, "-: stdin is a terminal; pipe a KV state into it, or name a file");
    if (!outputs.empty() && ::isatty(STDOUT_FILENO) != 0) {
        // Open MPI gives a rank a pseudo-terminal, whatever its own output is.
        if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr)
            return fail(Errc::usage,
                        "-: stdout of a rank goes through mpirun, which is slow and changes bytes; use mpi:RANK or -o "
                        "FILE");
        return fail(Errc::usage,
                    "-: stdout is a terminal; a KV state is binary: pipe it into a command or use -o FILE");
    }
    return {};
}

Result<std::unique_ptr<kv::Source>> open_pipe_source(const Endpoint&, const TransportOptions& options) {
    return read_pipe(STDIN_FILENO, "stdin", options.max_memory_bytes);
}

Result<std::unique_ptr<kv::Sink>> open_pipe_sink(const Endpoint&, const TransportOptions& options) {
    return write_pipe(STDOUT_FILENO, "stdout", options.max_memory_bytes);
}

}  // namespace

const EndpointType pipe_endpoint = {EndpointKind::pipe, parse_pipe, pipe_text, prepare_pipe, open_pipe_source,
                                    open_pipe_sink,     nullptr,    nullptr,   nullptr,      nullptr};

}  // namespace hetero::transport
