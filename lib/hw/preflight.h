// Whether a machine is fit for what a plan wants of it: the list that one goes through before a job is started.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hw/profile.h"

namespace hetero::hw {

// What is asked of one machine. What is left out is not checked against.
struct Demand {
    std::vector<std::string> dtypes;     // weights that must have an executable path: "int4"
    std::vector<std::string> kv_dtypes;  // resident KV that attention must run over: "int8"
    std::vector<std::string> codecs;     // of KV on the link: "int4"; floats need none
    bool gpu = false;
    std::optional<std::uint64_t> weight_bytes;    // on each device
    std::optional<std::uint64_t> state_bytes;     // of KV, of one request, as it is sent
    std::string peer;                             // the machine at the other end of the link; empty: none
    bool sends = true;                            // else it receives
    std::optional<double> link_gb_per_s;          // KV that requests bring a second
    std::optional<double> planned_link_gb_per_s;  // at which the plan expects a state to be sent
};

enum class Fitness : std::uint8_t { ok, warn, fail };

struct Check {
    std::string name;  // "precision", "driver", "link", "memory", "memlock", "shm", "hugepages", "time", "cpus", "copy"
    Fitness result = Fitness::ok;
    std::string found;   // one line
    std::string remedy;  // what to do; empty where all is well
};

// Every check, in this order. `machine` is one of the profile's.
[[nodiscard]] std::vector<Check> preflight(const Profile& profile, const Machine& machine, const Demand& demand);

[[nodiscard]] std::string_view to_string(Fitness fitness) noexcept;  // "ok", "warn", "fail"

}  // namespace hetero::hw
