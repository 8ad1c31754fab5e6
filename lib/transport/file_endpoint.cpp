// PATH: a hetero-kv file.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/errno_text.h"
#include "kv/file.h"
#include "transport/registry.h"

namespace hetero::transport {
namespace {

std::optional<Result<Endpoint>> parse_file(std::string_view text) {
    Endpoint endpoint;
    endpoint.path = std::string(text);
    return endpoint;
}

std::string file_text(const Endpoint& endpoint) { return endpoint.path; }

Status check_input(const std::string& path, struct stat& info) {
    if (::stat(path.c_str(), &info) != 0 || ::faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) != 0)
        return fail(open_errc(errno), "{}: cannot open: {}", path, errno_text(errno));
    if (S_ISDIR(info.st_mode)) return fail(Errc::bad_input, "{}: is a directory, not a KV state", path);
    return {};
}

Status prepare_file(const std::vector<Endpoint>& inputs, const std::vector<Endpoint>& outputs,
                    const TransportOptions& options) {
    std::vector<struct stat> read(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) HETERO_CHECK(check_input(inputs[i].path, read[i]));
    for (const Endpoint& output : outputs) {
        struct stat written {};
        if (::stat(output.path.c_str(), &written) == 0) {
            for (std::size_t i = 0; i < read.size(); ++i)
                if (read[i].st_dev == written.st_dev && read[i].st_ino == written.st_ino)
                    return fail(Errc::usage, "{}: is the input {} itself; write to another file", output.path,
                                inputs[i].path);
        }
        HETERO_CHECK(io::check_output_path(output.path, options.overwrite));
    }
    return {};
}

Result<std::unique_ptr<kv::Source>> open_file_source(const Endpoint& endpoint, const TransportOptions&) {
    return kv::open_file(endpoint.path);
}

Result<std::unique_ptr<kv::Sink>> open_file_sink(const Endpoint& endpoint, const TransportOptions& options) {
    return kv::create_file(endpoint.path, options.overwrite);
}

}  // namespace

const EndpointType file_endpoint = {EndpointKind::file, parse_file,     file_text, prepare_file,
                                    open_file_source,   open_file_sink, nullptr};

}  // namespace hetero::transport
