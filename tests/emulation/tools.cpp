// The tools' only source beside their own: takes the place of the library's backend, which a test cannot have. What
// HETERO_EMULATION says, as "devices=1,fail_kernel=norm", is how the devices are; names are those of Settings, and
// mpi_reads=1: MPI sends from their memory, which is the host's.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "emulation.h"

namespace hetero::kernels {
namespace {

bool mpi_reads = false;

std::uint64_t number(std::string_view text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) return value;
    std::fprintf(stderr, "HETERO_EMULATION: '%s' is no number\n", std::string(text).c_str());
    std::abort();
}

void set(emulation::Settings& settings, std::string_view name, std::string_view value) {
    if (name == "devices") {
        settings.devices = static_cast<int>(number(value));
    } else if (name == "total_bytes") {
        settings.total_bytes = number(value);
    } else if (name == "mpi_reads") {
        mpi_reads = number(value) != 0;
    } else if (name == "late") {
        settings.late = number(value) != 0;
    } else if (name == "fail_kernel") {
        settings.fail_kernel = value;
    } else if (name == "fail_after") {
        settings.fail_after = number(value);
    } else {
        std::fprintf(stderr, "HETERO_EMULATION: '%s' is not known\n", std::string(name).c_str());
        std::abort();
    }
}

DeviceOps configured() {
    emulation::Settings settings;
    const char* wanted = std::getenv("HETERO_EMULATION");
    for (std::string_view rest = wanted == nullptr ? "" : wanted; !rest.empty();) {
        const std::string_view one = rest.substr(0, rest.find(','));
        rest.remove_prefix(std::min(rest.size(), one.size() + 1));
        const std::size_t at = std::min(one.find('='), one.size());
        set(settings, one.substr(0, at), one.substr(std::min(at + 1, one.size())));
    }
    emulation::configure(settings);
    DeviceOps ops = emulated_ops();
    ops.name = "cuda";
    return ops;
}

}  // namespace

const DeviceOps* cuda_ops(const char** why_not) noexcept {
    static const DeviceOps ops = configured();
    if (why_not != nullptr) *why_not = nullptr;
    return &ops;
}

}  // namespace hetero::kernels

// In the place of Open MPI's own.
extern "C" int MPIX_Query_cuda_support();
extern "C" int MPIX_Query_cuda_support() { return hetero::kernels::mpi_reads ? 1 : 0; }
