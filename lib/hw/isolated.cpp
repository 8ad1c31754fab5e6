#include "hw/isolated.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "base/errno_text.h"

namespace hetero::hw {
namespace {

[[noreturn]] void run_child(int out, const std::function<std::string()>& work) {
    const int null = ::open("/dev/null", O_RDWR);
    if (null >= 0) {
        ::dup2(null, STDOUT_FILENO);
        ::dup2(null, STDERR_FILENO);
    }
    int status = 1;
    try {
        const std::string text = work();
        std::size_t sent = 0;
        while (sent < text.size()) {
            const ssize_t n = ::write(out, text.data() + sent, text.size() - sent);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) break;
            sent += static_cast<std::size_t>(n);
        }
        status = sent == text.size() ? 0 : 1;
    } catch (...) {
        status = 1;
    }
    ::_exit(status);
}

int wait_for(pid_t child) {
    int status = 0;
    while (::waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) return -1;
    }
    return status;
}

}  // namespace

Result<std::string> run_isolated(const std::function<std::string()>& work, double timeout_s) {
    int pipe_fds[2];
    if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return fail(Errc::resource, "no pipe: {}", errno_text(errno));
    const pid_t child = ::fork();
    if (child < 0) {
        const int error = errno;
        ::close(pipe_fds[0]);
        ::close(pipe_fds[1]);
        return fail(Errc::resource, "no child process: {}", errno_text(error));
    }
    if (child == 0) {
        ::close(pipe_fds[0]);
        run_child(pipe_fds[1], work);
    }
    ::close(pipe_fds[1]);

    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
    std::string text;
    bool ended = false;
    char buffer[4096];
    while (!ended) {
        const double left_s = std::chrono::duration<double>(deadline - std::chrono::steady_clock::now()).count();
        pollfd ready{pipe_fds[0], POLLIN, 0};
        if (left_s <= 0) break;
        if (::poll(&ready, 1, static_cast<int>(left_s * 1000) + 1) <= 0)
            continue;  // time-out and EINTR: look at the clock
        const ssize_t n = ::read(pipe_fds[0], buffer, sizeof buffer);
        if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
        if (n == 0 || (n < 0 && errno != EINTR)) ended = true;
    }
    ::close(pipe_fds[0]);
    if (!ended) {
        ::kill(child, SIGKILL);
        wait_for(child);
        return fail(Errc::resource, "no answer within {} s", timeout_s);
    }
    const int status = wait_for(child);
    if (WIFSIGNALED(status)) return fail(Errc::resource, "died of signal {}", WTERMSIG(status));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return fail(Errc::resource, "failed");
    return text;
}

Library::Library(std::initializer_list<const char*> names) {
    for (const char* name : names) {
        handle_ = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
        if (handle_ != nullptr) {
            name_ = name;
            return;
        }
        const char* text = ::dlerror();
        if (error_.empty() && text != nullptr) error_ = text;
    }
}

void* Library::address(const char* name) const { return handle_ == nullptr ? nullptr : ::dlsym(handle_, name); }

}  // namespace hetero::hw
