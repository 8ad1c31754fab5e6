// The file by which two MPI jobs find each other (mpi-port:FILE). The receiving side publishes it and waits; a sender
// claims it by taking it away, and both then call MPI within moments of each other. So waiting for somebody who never
// comes is not waiting inside MPI, and every port is used once. The file is text, hetero-transports(7).
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "io/atomic_file.h"
#include "transport/file_descriptor.h"

namespace hetero::io {
struct Temporary;
}

namespace hetero::transport {

struct PortFile {
    std::string server;   // URI of the ompi-server through which both sides meet; empty: they need none
    std::string port;     // as MPI_Open_port named it
    std::string host;     // of the process that published it, with its PID namespace
    std::string process;  // its PID and start time
};

[[nodiscard]] std::string encode(const PortFile& file);
// `path` is for messages. Errors: bad_input.
Result<PortFile> decode_port_file(std::string_view text, const std::string& path);

// Whether server and port are what Open MPI 4 writes: "N.N;tcp://A.B.C.D,...:PORT;..." and "N.N:N". It ends the process
// for a server that is none, and prints lines of its own for a port that is none.
[[nodiscard]] bool names_open_mpi_4(const PortFile& file);

// Nothing: there is no such file, or what published it has ended on this machine without removing it (`stale`).
Result<std::optional<PortFile>> read_port_file(const std::string& path, bool* stale = nullptr);
// The same, and takes the file away: of several that try, one gets it.
Result<std::optional<PortFile>> claim_port_file(const std::string& path);

class PublishedPort {
public:
    // Fills in host and process. A file that an ended process left is replaced, and with Overwrite::replace that of a
    // process which may live; anything that is not a port is refused. Mode 0600.
    static Result<PublishedPort> publish(const std::string& path, PortFile file, io::Overwrite overwrite);
    ~PublishedPort();  // removes the file if it is still there
    PublishedPort(PublishedPort&& other) noexcept;
    PublishedPort& operator=(PublishedPort&&) = delete;
    PublishedPort(const PublishedPort&) = delete;

    // A sender has taken it. Then it is not ours to remove any more.
    [[nodiscard]] bool claimed() noexcept;

private:
    PublishedPort() = default;
    void release(bool remove) noexcept;
    std::string path_;
    FileDescriptor file_;                    // keeps its number in the file system from being given to another file
    io::Temporary* registration_ = nullptr;  // a signal handler removes it too
};

}  // namespace hetero::transport
