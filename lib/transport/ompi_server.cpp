#include "transport/ompi_server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/errno_text.h"

namespace hetero::transport {
namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* variable = "OMPI_MCA_pmix_server_uri";
constexpr std::size_t longest_uri = 4096;

// After fork(): calls that a signal handler may make, too.
[[noreturn]] void become_server(int output, pid_t starter) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != starter) ::_exit(1);
    ::setpgid(0, 0);  // what the terminal sends is for us: we end it
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_DFL);
    const int nowhere = ::open("/dev/null", O_RDWR);
    if (nowhere < 0 || ::dup2(nowhere, 0) < 0 || ::dup2(nowhere, 1) < 0 || ::dup2(output, 2) < 0) ::_exit(1);
    ::execlp("ompi-server", "ompi-server", "--no-daemonize", "-r", "+", static_cast<char*>(nullptr));
    ::_exit(127);
}

// The line with the URI, on stderr (what goes to stdout stays in a buffer), within so long; empty if there is none.
std::string read_uri(int fd, double patience_s) {
    std::string line;
    const Clock::time_point begin = Clock::now();
    for (double left = patience_s; left > 0 && line.size() < longest_uri; left = patience_s - seconds_since(begin)) {
        struct pollfd ready = {fd, POLLIN, 0};
        if (::poll(&ready, 1, static_cast<int>(left * 1000) + 1) <= 0) continue;
        char c = 0;
        if (::read(fd, &c, 1) != 1) return {};
        if (c != '\n') {
            line += c;
        } else if (line.find("://") != std::string::npos) {
            return line;
        } else {
            line.clear();  // a warning
        }
    }
    return {};
}

}  // namespace

Result<OmpiServer> OmpiServer::start(double patience_s) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return fail(Errc::resource, "ompi-server: no pipe: {}", errno_text(errno));
    OmpiServer server;
    server.starter_ = ::getpid();
    server.pid_ = ::fork();
    if (server.pid_ == 0) become_server(ends[1], server.starter_);
    const int error = errno;
    ::close(ends[1]);
    if (server.pid_ > 0) server.uri_ = read_uri(ends[0], patience_s);
    ::close(ends[0]);
    if (server.pid_ < 0) return fail(Errc::resource, "ompi-server: cannot be started: {}", errno_text(error));
    if (server.uri_.empty())
        return fail(Errc::resource,
                    "ompi-server did not start within {:.3g} s; mpi-port: needs it with Open MPI before 5 (Debian: "
                    "openmpi-bin)",
                    patience_s);
    return server;
}

OmpiServer::OmpiServer(OmpiServer&& other) noexcept
    : uri_(std::move(other.uri_)), pid_(std::exchange(other.pid_, -1)), starter_(other.starter_) {}

OmpiServer::~OmpiServer() {
    if (pid_ <= 0 || ::getpid() != starter_) return;
    ::kill(pid_, SIGTERM);
    for (int i = 0; i < 100; ++i) {  // it removes its folder in /tmp
        if (::waitpid(pid_, nullptr, WNOHANG) != 0) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
}

Result<std::string> known_server() {
    const char* value = std::getenv(variable);
    if (value == nullptr) return std::string();
    const std::string_view text = value;
    constexpr std::string_view scheme = "file:";
    if (!text.starts_with(scheme)) return std::string(text);
    const std::string path(text.substr(scheme.size()));
    std::ifstream file(path);
    std::string uri;
    if (!std::getline(file, uri) || uri.empty() || uri.size() > longest_uri)
        return fail(Errc::bad_input, "{}: holds no URI of an ompi-server ({} names it)", path, variable);
    return uri;
}

void name_server(const std::string& uri) { ::setenv(variable, uri.c_str(), 1); }

}  // namespace hetero::transport
