// What this machine is and what it reaches: one profile, from small probes (one file each in probes/).
// The fields are described in hetero-hw(5).
#pragma once
#include <functional>
#include <string>

#include "base/result.h"

namespace hetero::hw {

struct ProbeOptions {
    bool measure = true;          // run the timed probes
    bool quick = false;           // with less memory and fewer sizes: about as long as seconds_each says, no more
    double seconds_each = 0.3;    // budget of one timed probe
    int threads = 0;              // of the probes that use all threads; 0: as many as this process may use
    std::string disk_path = ".";  // directory for the disk probe
    // The section "stages" as JSON, by whoever can run models; called last. Empty: it is unknown.
    std::function<Result<std::string>()> stages;
    std::string
        root;  // stands in for / in what is read from /proc and /sys (a recorded machine); nothing else is probed then
};

// The profile as a JSON document (text, two-space indent) or as TOML; both have the same content. A value that could
// not be found is never 0: it is null (JSON) or left out (TOML), and NAME_unknown beside it says why.
struct ProfileTexts {
    std::string json;
    std::string toml;
    std::string summary;  // a page for people
};

// usage: options out of range. A probe that cannot find or do something says so in its section; it does not fail.
Result<ProfileTexts> probe(const ProbeOptions& options);

}  // namespace hetero::hw
