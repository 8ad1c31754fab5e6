#include "transport/mpi_port.h"

#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "transport/file_descriptor.h"
#include "transport/mpi_call.h"
#include "transport/mpi_world.h"
#include "transport/ompi_server.h"
#include "transport/port_file.h"

namespace hetero::transport {
namespace {

using Clock = std::chrono::steady_clock;

// Open MPI before 5 looks ports of other jobs up in a server, which 5 no longer has; others find them without.
#if defined(OMPI_MAJOR_VERSION)
constexpr bool needs_server = OMPI_MAJOR_VERSION < 5, joins_jobs = OMPI_MAJOR_VERSION < 5;
#else
constexpr bool needs_server = false, joins_jobs = true;
#endif
constexpr const char* cannot_join =
    "mpi-port: this build uses Open MPI 5, which does not join jobs; build with Open MPI 4.1, or use mpi: in one job "
    "(mpirun --with-ft ulfm keeps the ranks of others alive)";

constexpr auto poll_interval = std::chrono::milliseconds(10);

double meet_s(const TransportOptions& options) { return options.meet_s > 0 ? options.meet_s : options.timeout_s; }

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
    return std::any_of(prefixes.begin(), prefixes.end(), [&](auto prefix) { return name.starts_with(prefix); });
}

// A process that mpirun or srun started, but whose job has no other ranks that it talks to, is an MPI job of its own:
// then it does not matter whether the launcher was told of the server.
void forget_launcher() {
    std::vector<std::string> names;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        const std::string_view name = text.substr(0, text.find('='));
        const bool of_launcher =
            name == "OMPI_MCA_pmix" ||
            starts_with_any(name, {"PMIX_", "PMI_", "OMPI_COMM_WORLD_", "OMPI_MCA_ess", "OMPI_MCA_orte_"}) ||
            starts_with_any(name, {"OMPI_APP_", "OMPI_FILE_LOCATION", "OMPI_FIRST_RANKS", "OMPI_NUM_APP_",
                                   "OMPI_UNIVERSE_", "OMPI_COMMAND", "OMPI_ARGV"});
        if (of_launcher) names.emplace_back(name);
    }
    for (const std::string& name : names) ::unsetenv(name.c_str());
}

// While it lives, descriptor 1 is stderr. Open MPI starts a daemon that has our stdout, and writes there that a server
// does not answer; our stdout is for a state or a report.
class StdoutAside {
public:
    StdoutAside() {
        std::fflush(stdout);
        if (stdout_.valid()) ::dup2(STDERR_FILENO, STDOUT_FILENO);
    }
    ~StdoutAside() {
        if (stdout_.valid()) ::dup2(stdout_.get(), STDOUT_FILENO);
    }
    StdoutAside(const StdoutAside&) = delete;
    StdoutAside& operator=(const StdoutAside&) = delete;

private:
    FileDescriptor stdout_{::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)};
};

// MPI with this server; where it runs already, it has to know it.
Status start_mpi(const std::string& uri, const TransportOptions& options) {
    if (MpiWorld::running() == nullptr) {
        forget_launcher();
        if (needs_server) name_server(uri);
        const StdoutAside aside;
        return MpiWorld::start_alone(options);
    }
    if (!needs_server) return {};
    HETERO_TRY(const std::string known, known_server());
    if (known == uri) return {};
    return fail(Errc::usage, "mpi-port: beside mpi: or --tp: the job has to be started with mpirun --ompi-server '{}'",
                uri);
}

Result<std::string> server_for_receiving(const TransportOptions& options) {
    if (!needs_server) return std::string();
    HETERO_TRY(std::string known, known_server());
    if (!known.empty()) return known;
    if (MpiWorld::running() != nullptr)
        return fail(Errc::usage,
                    "mpi-port: beside mpi: or --tp: run ompi-server --no-daemonize -r -, and start the job with mpirun "
                    "--ompi-server and the URI that it prints");
    static std::unique_ptr<OmpiServer> own;  // until the process ends: senders look our ports up in it
    HETERO_TRY(OmpiServer started, OmpiServer::start(notice_s(options)));
    own = std::make_unique<OmpiServer>(std::move(started));
    return own->uri();
}

// Every so often, until it returns true; an error of `done` is one of this function.
Result<bool> wait_until(double seconds, const std::function<Result<bool>()>& done) {
    for (const Clock::time_point begin = Clock::now();;) {
        HETERO_TRY(const bool is_done, done());
        if (is_done) return true;
        if (seconds_since(begin) > seconds) return false;
        HETERO_CHECK(MpiWorld::running() != nullptr ? MpiWorld::running()->check_group() : Status{});
        std::this_thread::sleep_for(poll_interval);
    }
}

// What `meet` says, or that the other side is to blame.
Status join(const Endpoint& endpoint, bool sending, std::function<Result<MPI_Comm>()> meet, std::string_view absent,
            const TransportOptions& options) {
    MpiWorld& world = *MpiWorld::running();
    const Status joined = world.join(endpoint.path, sending, std::move(meet), notice_s(options));
    if (joined) return {};
    const std::string name = to_string(endpoint);
    if (world.stuck()) return fail(Errc::peer, "{}: {} within {:.3g} s", name, absent, notice_s(options));
    return fail(joined.error().code, "{}: {}", name, joined.error().message);
}

Status receive_at(const Endpoint& endpoint, const TransportOptions& options) {
    PortFile file;
    HETERO_TRY(file.server, server_for_receiving(options));
    HETERO_CHECK(start_mpi(file.server, options));
    auto port = std::make_shared<std::string>(MPI_MAX_PORT_NAME, '\0');
    HETERO_CHECK(MpiWorld::running()->run_job(
        [port]() -> Status {
            HETERO_MPI_CHECK(MPI_Open_port(MPI_INFO_NULL, port->data()), "MPI_Open_port");
            return {};
        },
        notice_s(options)));
    file.port = port->c_str();
    HETERO_TRY(PublishedPort published, PublishedPort::publish(endpoint.path, file, options.overwrite));
    log::debug("{}: waits at port {}", to_string(endpoint), file.port);
    HETERO_TRY(const bool came, wait_until(meet_s(options), [&]() -> Result<bool> { return published.claimed(); }));
    if (!came)
        return fail(Errc::peer, "{}: no sender came within {:.3g} s (--wait allows more time)", to_string(endpoint),
                    meet_s(options));
    return join(
        endpoint, false,
        [port]() -> Result<MPI_Comm> {
            MPI_Comm comm = MPI_COMM_NULL;
            HETERO_MPI_CHECK(MPI_Comm_accept(port->c_str(), MPI_INFO_NULL, 0, MPI_COMM_SELF, &comm), "MPI_Comm_accept");
            return comm;
        },
        "a sender took the file, but did not connect", options);
}

Status send_to(const Endpoint& endpoint, const TransportOptions& options) {
    const Clock::time_point begin = Clock::now();
    bool stale = false;
    std::optional<PortFile> file;
    const auto wait_for_file = [&](auto look) -> Status {
        HETERO_TRY(const bool there, wait_until(meet_s(options) - seconds_since(begin), [&]() -> Result<bool> {
                       HETERO_TRY(file, look());
                       return file.has_value();
                   }));
        if (there) return {};
        if (stale)
            return fail(Errc::peer, "{}: the receiver that left this file has ended, and no other came within {:.3g} s",
                        to_string(endpoint), meet_s(options));
        return fail(Errc::peer, "{}: no receiver has published this file within {:.3g} s (--wait allows more time)",
                    to_string(endpoint), meet_s(options));
    };
    HETERO_CHECK(wait_for_file([&] { return read_port_file(endpoint.path, &stale); }));
    if (needs_server && !names_open_mpi_4(*file))
        return fail(Errc::bad_input, "{}: names no port of Open MPI 4, which this build uses", to_string(endpoint));
    const std::string server = file->server;
    HETERO_CHECK(start_mpi(server, options));
    HETERO_CHECK(wait_for_file([&] { return claim_port_file(endpoint.path); }));
    if (file->server != server || (needs_server && !names_open_mpi_4(*file)))
        return fail(Errc::peer, "{}: another receiver has taken this file's place; start again", to_string(endpoint));
    return join(
        endpoint, true,
        [port = file->port]() -> Result<MPI_Comm> {
            MPI_Comm comm = MPI_COMM_NULL;
            HETERO_MPI_CHECK(MPI_Comm_connect(port.c_str(), MPI_INFO_NULL, 0, MPI_COMM_SELF, &comm),
                             "MPI_Comm_connect");
            return comm;
        },
        "the receiver that published this file did not accept", options);
}

}  // namespace

Status prepare_ports(const std::vector<Endpoint>& inputs, const std::vector<Endpoint>& outputs,
                     const TransportOptions& options) {
    if (!joins_jobs) return fail(Errc::usage, "{}", cannot_join);
    std::vector<std::string> files;
    for (const auto* endpoints : {&inputs, &outputs})
        for (const Endpoint& endpoint : *endpoints) {
            if (std::find(files.begin(), files.end(), endpoint.path) != files.end())
                return fail(Errc::usage, "{} is named twice", to_string(endpoint));
            files.push_back(endpoint.path);
        }
    for (const Endpoint& input : inputs) HETERO_CHECK(receive_at(input, options));
    for (const Endpoint& output : outputs) HETERO_CHECK(send_to(output, options));
    return {};
}

Result<std::shared_ptr<const void>> start_port_service(const TransportOptions& options) {
    if (!joins_jobs) return fail(Errc::usage, "{}", cannot_join);
    std::shared_ptr<const void> none;
    if (!needs_server) return none;
    HETERO_TRY(const std::string known, known_server());
    if (!known.empty()) return none;
    HETERO_TRY(OmpiServer started, OmpiServer::start(notice_s(options)));
    auto server = std::make_shared<OmpiServer>(std::move(started));
    name_server(server->uri());
    return std::shared_ptr<const void>(std::move(server));
}

}  // namespace hetero::transport
