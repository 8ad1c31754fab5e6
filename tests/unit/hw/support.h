// Folders that stand in for a machine, and profiles as documents.
#pragma once
#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "hw/probe.h"

namespace hetero::test {

using Json = nlohmann::ordered_json;

// A folder that goes away with the test.
class Folder {
public:
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "hetero-hw-XXXXXX").string();
        REQUIRE(::mkdtemp(name.data()) != nullptr);
        path_ = name;
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    [[nodiscard]] const std::string& path() const { return path_; }
    void write(const std::string& file, const std::string& text) const {
        const std::filesystem::path path = path_ + "/" + file;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream out(path);
        out << text << "\n";
        REQUIRE(out.good());
    }

private:
    std::string path_;
};

inline hw::Profile profile(const hw::ProbeOptions& options) {
    auto result = hw::probe(options);
    REQUIRE_MESSAGE(result.has_value(), result.error().message);
    return *result;
}

// Of the machine recorded in `root`.
inline Json recorded(const Folder& root) {
    hw::ProbeOptions options;
    options.root = root.path();
    return Json::parse(profile(options).json);
}

// /proc of a host with 16 CPUs and 64 GiB.
inline void write_host(const Folder& root) {
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
