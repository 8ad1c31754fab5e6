#include "common/process.h"

#include <fcntl.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "io/atomic_file.h"

namespace hetero::tool {
namespace {

extern "C" void on_fatal_signal(int signal) {
    io::remove_temporaries_on_signal();
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
    raise(signal);
}

struct LogState {
    std::shared_ptr<spdlog::logger> logger;
    std::string tool = "hetero";
    LogFormat format = LogFormat::text;
};
LogState& log_state() {
    static LogState state;
    return state;
}

// One line, and nothing that a terminal would obey: names in messages come from files.
// Unlike hetero::printable() it leaves what else UTF-8 can say.
std::string one_line(std::string_view message) {
    std::string line(message);
    unsigned char before = 0;
    for (char& c : line) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte == '\n' || byte == '\t') {
            c = ' ';
        } else if (byte < 0x20 || byte == 0x7f || (before == 0xc2 && byte >= 0x80 && byte < 0xa0)) {  // C0, C1
            c = '?';
        }
        before = byte;
    }
    return line;
}

void log_line(std::string_view level, std::string_view message) {
    LogState& state = log_state();
    if (!state.logger) {
        state.logger = std::make_shared<spdlog::logger>("hetero", std::make_shared<spdlog::sinks::stderr_sink_mt>());
        state.logger->set_pattern("%v");
        state.logger->set_level(spdlog::level::trace);
    }
    if (state.format == LogFormat::json) {
        const nlohmann::ordered_json line = {{"level", level}, {"tool", state.tool}, {"message", message}};
        state.logger->info(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    } else {
        const bool plain = level == "error" || level == "note";
        state.logger->info("{}: {}{}{}", state.tool, plain ? "" : level, plain ? "" : ": ", one_line(message));
    }
    state.logger->flush();
}

}  // namespace

void secure_standard_streams() noexcept {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
        // open() takes the lowest free number, which is fd. Read-only on stdout: a write there fails, as it should.
        const int opened = open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
        if (opened != fd && opened >= 0) close(opened);
    }
}

void install_signal_handlers() noexcept {
    std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit fails with EFBIG
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2, SIGXCPU}) {
        struct sigaction old = {};
        sigaction(signal, nullptr, &old);
        if (signal != SIGPIPE && old.sa_handler == SIG_IGN) continue;  // nohup
        struct sigaction action = {};
        action.sa_handler = on_fatal_signal;
        sigemptyset(&action.sa_mask);
        sigaction(signal, &action, nullptr);
    }
}

Status write_stdout(std::string_view data) {
    while (!data.empty()) {
        const ssize_t written = write(STDOUT_FILENO, data.data(), data.size());
        if (written < 0) {
            if (errno == EINTR) continue;
            return fail(Errc::resource, "stdout: {}", std::strerror(errno));
        }
        data.remove_prefix(static_cast<std::size_t>(written));
    }
    return {};
}

void start_log(const std::string& tool, LogFormat format, bool quiet, bool verbose) {
    log_state().tool = tool;
    log_state().format = format;
    const log::Level threshold = verbose ? log::Level::debug : quiet ? log::Level::error : log::Level::warn;
    log::set_sink(
        [](log::Level level, std::string_view message) {
            static constexpr std::string_view names[] = {"debug", "info", "warning", "error"};
            log_line(names[static_cast<int>(level)], message);
        },
        threshold);
}

void log_error(const std::string& message) { log_line("error", message); }
void log_note(const std::string& message) { log_line("note", message); }

}  // namespace hetero::tool
