#include "common/turns.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

namespace hetero::tool {
namespace {

constexpr std::string_view number_mark = "%n";

// With which Open MPI itself ends a process whose peer has gone, where a message to it fails while the two are joined.
constexpr int ended_by_mpi = 255;
constexpr int most_ends_in_a_row = 8;  // beyond these it is not the sender

// 128 plus the signal where there was one, as shells say it.
int wait_for(pid_t process) {
    int status = 0;
    while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string numbered(std::string pattern, std::uint64_t number) {
    const std::size_t at = pattern.find(number_mark);
    return at == std::string::npos ? pattern : pattern.replace(at, number_mark.size(), std::to_string(number));
}

}  // namespace

void add_turn_option(OptionTable& table, TurnOptions& options) {
    table.integer("--count", "N", &options.count, 0, std::uint64_t{1} << 32,
                  "receive N states one after the other from mpi-port:FILE; 0: until stopped");
}

Result<Turns> Turns::start(const Tool& tool, const TurnOptions& options, const std::string& input,
                           const std::string& output, TransferOptions& transfer) {
    HETERO_TRY(const transport::Endpoint endpoint, transport::parse_endpoint(input));
    if (endpoint.kind != transport::EndpointKind::mpi_port)
        return fail(Errc::usage, "--count is for a state from mpi-port:FILE");
    if (tool.reports()) return fail(Errc::usage, "--count makes no one document: leave --json and --report out");
    if (transfer.tp > 1 || transfer.dry_run) return fail(Errc::usage, "--count goes with neither --tp nor --dry-run");
    if (transfer.wait_s > 0) return fail(Errc::usage, "--count waits for each sender without end: leave --wait out");
    if (!output.empty()) {
        HETERO_TRY(const transport::Endpoint to, transport::parse_endpoint(output));
        if (to.kind != transport::EndpointKind::file) return fail(Errc::usage, "--count writes files only");
        if (output.find(number_mark) == std::string::npos)
            return fail(Errc::usage, "{}: --count writes several files: put %n in the name, as in out-%n.h5", output);
    }
    transfer.wait_s = std::numeric_limits<double>::infinity();
    Turns turns;
    HETERO_TRY(turns.service_, transport::start_port_service(transfer.transport(tool)));
    turns.count_ = options.count;
    turns.pattern_ = output;
    void* shared = ::mmap(nullptr, sizeof(bool), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return fail(Errc::resource, "no memory: {}", std::strerror(errno));
    turns.met_ = static_cast<bool*>(shared);
    return turns;
}

Result<bool> Turns::next(Tool& tool, std::string& output) {
    const pid_t first = ::getpid();
    int ends_in_a_row = 0;
    for (std::uint64_t done = 0; count_ == 0 || done < count_;) {
        output = numbered(pattern_, done + 1);
        if (!output.empty()) HETERO_CHECK(io::check_output_path(output, tool.overwrite()));
        *met_ = false;
        const pid_t process = ::fork();
        if (process < 0) return fail(Errc::resource, "no process for state {}: {}", done + 1, std::strerror(errno));
        if (process == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGTERM);
            if (::getppid() != first) ::_exit(static_cast<int>(Errc::peer));
            return true;
        }
        const int status = wait_for(process);
        ends_in_a_row = status == ended_by_mpi ? ends_in_a_row + 1 : 0;
        const bool of_sender = status == static_cast<int>(Errc::peer) ||
                               (*met_ && status == static_cast<int>(Errc::bad_input)) ||
                               (status == ended_by_mpi && ends_in_a_row <= most_ends_in_a_row);
        if (status == 0) {
            ++done;
        } else if (of_sender) {
            tool.note("state {} did not arrive; waiting for another sender", done + 1);
        } else {
            const bool known = status > 0 && status <= static_cast<int>(Errc::peer);
            return fail(known ? static_cast<Errc>(status) : Errc::internal,
                        "state {}: its process ended with status {}; {} have arrived", done + 1, status, done);
        }
    }
    return false;
}

}  // namespace hetero::tool
