// The HDF5 image on a descriptor: what "-" does with stdin and stdout.
#pragma once
#include <memory>
#include <string>

#include "kv/stream.h"

namespace hetero::transport {

// Reads `fd` to its end, at most `max_memory_bytes` into memory and the rest into an unlinked temporary file ($TMPDIR,
// else /var/tmp, else /tmp). Nothing there, or not a whole image: bad_input. `name` is for messages ("stdin").
Result<std::unique_ptr<kv::Source>> read_pipe(int fd, const std::string& name, std::uint64_t max_memory_bytes);

// Writes nothing before commit(). A reader that has gone away: SIGPIPE, or where that is ignored a peer error. States
// above `max_memory_bytes` are put together in a temporary file.
std::unique_ptr<kv::Sink> write_pipe(int fd, const std::string& name, std::uint64_t max_memory_bytes);

}  // namespace hetero::transport
