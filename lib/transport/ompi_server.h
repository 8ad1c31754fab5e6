// Open MPI before 5 joins two jobs by way of a process that both reach: ompi-server(1). One that is there is used; the
// one that this process started ends with it.
#pragma once
#include <sys/types.h>

#include <string>

#include "base/result.h"

namespace hetero::transport {

class OmpiServer {
public:
    // Errors: resource (not installed, did not come up in time).
    static Result<OmpiServer> start(double patience_s);
    ~OmpiServer();
    OmpiServer(OmpiServer&& other) noexcept;
    OmpiServer& operator=(OmpiServer&&) = delete;
    OmpiServer(const OmpiServer&) = delete;

    [[nodiscard]] const std::string& uri() const noexcept { return uri_; }

private:
    OmpiServer() = default;
    std::string uri_;
    pid_t pid_ = -1, starter_ = -1;  // whoever forks off from us leaves it alone
};

// The server that this process was told of (mpirun --ompi-server, or the variable that it sets): its URI, or empty.
Result<std::string> known_server();
// For MPI_Init, as far as MPI runs without mpirun.
void name_server(const std::string& uri);

}  // namespace hetero::transport
