// Folders that stand in for a machine, and profiles as documents.
#pragma once
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "hw/probe.h"
#include "support/temp_dir.h"

namespace hetero::test {

using Json = nlohmann::ordered_json;

// A folder that stands in for a machine.
class Recording : public TempDir {
public:
    void write(const std::string& file, const std::string& text) const {
        TempDir::write(file, text + "\n");  // as the kernel ends its files
    }
};

inline hw::ProfileTexts profile(const hw::ProbeOptions& options) {
    auto result = hw::probe(options);
    REQUIRE_MESSAGE(result.has_value(), result.error().message);
    return *result;
}

// Of the machine recorded in `root`.
inline Json recorded(const Recording& root) {
    hw::ProbeOptions options;
    options.root = root.path();
    return Json::parse(profile(options).json);
}

// /proc of a host with 16 CPUs and 64 GiB.
inline void write_host(const Recording& root) {
    std::string cpuinfo;
    for (int cpu = 0; cpu < 16; ++cpu) {
        cpuinfo += "processor\t: " + std::to_string(cpu) +
                   "\nvendor_id\t: GenuineIntel\nmodel name\t: A CPU @ 3 GHz\nflags\t\t: fpu sse4_2 avx avx2 fma f16c "
                   "avx512f\n\n";
    }
    root.write("proc/cpuinfo", cpuinfo);
    root.write("proc/meminfo",
               "MemTotal:       67108864 kB\nMemAvailable:   60000000 kB\nSwapTotal:             0 kB\nHugepagesize:   "
               "    2048 kB");
    root.write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-15");
    root.write("sys/devices/system/cpu/online", "0-15");
}

}  // namespace hetero::test
