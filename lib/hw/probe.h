// What this machine is and what it reaches: one profile, from small probes (one file each).
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace hetero::hw {

// A value that could not be found is absent with a reason, never 0.
template <class T>
struct Known {
    std::optional<T> value;
    std::string reason;  // why it is unknown
};

struct ProbeOptions {
    bool measure = true;          // run the timed probes
    double seconds_each = 0.3;    // budget of one timed probe
    int threads = 0;
    std::string disk_path = ".";  // directory for the disk probe
    std::string root;             // stands in for / in the /proc and /sys probes (tests)
};

// The profile as a JSON document (text, two-space indent) or as TOML; both have the same content. Unknown values are
// null (JSON) or left out with NAME_unknown = "reason" (TOML).
struct Profile {
    std::string json;
    std::string toml;
    std::string summary;  // a page for people
};

Result<Profile> probe(const ProbeOptions& options);

}  // namespace hetero::hw
