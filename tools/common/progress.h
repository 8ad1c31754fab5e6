// One line on stderr that tells how far long work is, how fast, and how long it will take.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "common/tool.h"

namespace hetero::tool {

class Progress {
public:
    // `unit`: "tokens". On a terminal the line is rewritten; elsewhere (--progress always) lines follow each other.
    Progress(const Tool& tool, std::string label, std::uint64_t total, std::string unit);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    void update(std::uint64_t done);

private:
    using Clock = std::chrono::steady_clock;
    bool enabled_, terminal_, drawn_ = false;
    std::string label_, unit_;
    std::uint64_t total_;
    Clock::time_point start_, last_;
};

}  // namespace hetero::tool
