// Name, operating system and clock.
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>

#include "base/errno_text.h"
#include "hw/probes/probes.h"

namespace hetero::hw {

Json probe_host(const Context& context) {
    Json section;
    utsname name{};
    if (!context.recorded() && ::uname(&name) == 0) {
        section["hostname"] = name.nodename;
        section["kernel"] = std::string(name.sysname) + " " + name.release;
        section["architecture"] = name.machine;
    } else {
        for (const char* field : {"hostname", "kernel", "architecture"}) {
            put_unknown(section, field, context.recorded() ? not_recorded : "uname failed");
        }
    }
    std::optional<std::string> os;
    if (const auto release = read_text(context.path("/etc/os-release"))) {
        for (std::size_t at = 0; at < release->size();) {
            const std::size_t end = std::min(release->find('\n', at), release->size());
            const std::string line = release->substr(at, end - at);
            if (line.starts_with("PRETTY_NAME=")) {
                os = line.substr(12);
                if (os->size() >= 2 && os->front() == '"') os = os->substr(1, os->size() - 2);
            }
            at = end + 1;
        }
    }
    put(section, "os", os, "no PRETTY_NAME in /etc/os-release");
    return section;
}

Json probe_clock(const Context& context) {
    Json section;
    put(section, "clock_source",
        read_text(context.path("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        "no current_clocksource under /sys/devices/system/clocksource");
    timespec resolution{};
    if (context.recorded() || ::clock_getres(CLOCK_MONOTONIC, &resolution) != 0) {
        put_unknown(section, "clock_resolution_ns", context.recorded() ? not_recorded : "clock_getres failed");
    } else {
        section["clock_resolution_ns"] = resolution.tv_sec * 1'000'000'000LL + resolution.tv_nsec;
    }
    // Of the realtime clock, as the kernel's discipline has it (adjtimex(2)): whether something keeps it in time.
    timex state{};
    const int synchronized = context.recorded() ? -1 : ::adjtimex(&state);
    if (synchronized < 0) {
        const std::string reason = context.recorded() ? not_recorded : errno_text(errno);
        put_unknown(section, "synchronized", reason);
        put_unknown(section, "max_error_us", reason);
    } else {
        section["synchronized"] = synchronized != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
        section["max_error_us"] = state.maxerror;
    }
    if (const char* reason = context.measures_nothing()) {
        put_unknown(section, "clock_read_ns", reason);
    } else {
        constexpr int reads = 100'000;
        const auto start = std::chrono::steady_clock::now();
        auto last = start;
        for (int i = 0; i < reads; ++i) last = std::chrono::steady_clock::now();
        section["clock_read_ns"] = rounded(std::chrono::duration<double, std::nano>(last - start).count() / reads);
    }
    return section;
}

}  // namespace hetero::hw
