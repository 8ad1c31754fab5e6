// Whether one process may copy from the memory of another (cross-memory attach, process_vm_readv(2)): MPI libraries use
// it for large messages on one machine, and warn or fall back to two copies where a container or Yama forbids it.
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "base/errno_text.h"
#include "hw/isolated.h"
#include "hw/probes/probes.h"

namespace hetero::hw {
namespace {

constexpr double timeout_s = 5;

// Called in a child: like the other rank, the parent is no descendant of its own. "ok", or the system's reason.
std::string read_from_parent(const std::uint64_t* there) {
    std::uint64_t here = 0;
    iovec local{&here, sizeof here};
    iovec remote{const_cast<std::uint64_t*>(there), sizeof *there};
    const ssize_t n = ::process_vm_readv(::getppid(), &local, 1, &remote, 1, 0);
    if (n < 0) return errno_text(errno);
    return n == static_cast<ssize_t>(sizeof here) && here == *there ? "ok" : "the copy differs";
}

}  // namespace

Json probe_process_copy(const Context& context) {
    Json section;
    put(section, "yama_ptrace_scope", read_integer(context.path("/proc/sys/kernel/yama/ptrace_scope")),
        "the kernel has no Yama");
    if (context.recorded()) {
        put_unknown(section, "cma_allowed", not_recorded);
        return section;
    }
    static const std::uint64_t pattern = 0x0123456789ABCDEF;
    const auto answer = run_isolated([] { return read_from_parent(&pattern); }, timeout_s);
    if (!answer) {
        put_unknown(section, "cma_allowed", "the test " + answer.error().message);
        return section;
    }
    section["cma_allowed"] = *answer == "ok";
    if (*answer != "ok") section["cma_reason"] = "process_vm_readv: " + *answer;
    return section;
}

}  // namespace hetero::hw
