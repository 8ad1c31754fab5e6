// PATH: a hetero-kv file, or the files of its shards.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/errno_text.h"
#include "kv/shard_files.h"
#include "transport/group.h"
#include "transport/group_source.h"
#include "transport/registry.h"
#include "transport/resume.h"

namespace hetero::transport {
namespace {

std::optional<Result<Endpoint>> parse_file(std::string_view text) {
    Endpoint endpoint;
    endpoint.path = std::string(text);
    return endpoint;
}

std::string file_text(const Endpoint& endpoint) { return endpoint.path; }

struct InputFile {
    std::string path;
    struct stat info {};
};

// Adds what reading `path` may open.
Status check_input(const std::string& path, std::vector<InputFile>& inputs) {
    HETERO_TRY(std::vector<std::string> files, kv::state_files(path));
    for (std::string& file : files) {
        InputFile& input = inputs.emplace_back();
        input.path = std::move(file);
        if (::stat(input.path.c_str(), &input.info) != 0 ||
            ::faccessat(AT_FDCWD, input.path.c_str(), R_OK, AT_EACCESS) != 0)
            return fail(open_errc(errno), "{}: cannot open: {}", input.path, errno_text(errno));
        if (S_ISDIR(input.info.st_mode)) return fail(Errc::bad_input, "{}: is a directory, not a KV state", input.path);
    }
    return {};
}

Status prepare_file(const std::vector<Endpoint>& inputs, const std::vector<Endpoint>& outputs,
                    const TransportOptions& options) {
    std::vector<InputFile> read;
    for (const Endpoint& input : inputs) HETERO_CHECK(check_input(input.path, read));
    for (const Endpoint& output : outputs) {
        struct stat written {};
        if (::stat(output.path.c_str(), &written) == 0) {
            for (const InputFile& input : read)
                if (input.info.st_dev == written.st_dev && input.info.st_ino == written.st_ino)
                    return fail(Errc::usage, "{}: is the input {} itself; write to another file", output.path,
                                input.path);
        }
        HETERO_CHECK(io::check_output_path(output.path, options.overwrite));
    }
    return {};
}

Result<std::unique_ptr<kv::Source>> open_file_source(const Endpoint& endpoint, const TransportOptions& options) {
    HETERO_TRY(kv::StateFiles files, kv::open_files(endpoint.path));
    kv::Shard own;
    // Of a whole state no byte less is read for some of its heads: they lie side by side, token by token.
    if (options.own_heads && group().size() > 1 && files.sources.front()->header().is_shard()) {
        HETERO_TRY(own, own_shard(group(), kv::head_counts(files.identity())));
    }
    return kv::read_shard(std::move(files), own);
}

Result<std::unique_ptr<kv::Sink>> open_file_sink(const Endpoint& endpoint, const TransportOptions& options) {
    if (options.resume) return options.resume->create_sink(options.overwrite);
    return kv::create_file(endpoint.path, options.overwrite);
}

}  // namespace

const EndpointType file_endpoint = {EndpointKind::file, parse_file, file_text, prepare_file, open_file_source,
                                    open_file_sink,     nullptr,    nullptr,   nullptr,      nullptr};

}  // namespace hetero::transport
