// One profile of the machines of a job and of the links between its ranks.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "hw/probe.h"
#include "hw/profile.h"

namespace hetero::hw {

struct RankProfile {
    std::string machine;  // alike on ranks of one machine: this_machine()
    std::string json;     // what probe() made; empty where another rank of the machine made one
};
// Of the running system: host name and boot.
[[nodiscard]] std::string this_machine();

// `ranks` in their order; `links` have from_rank and to_rank, and get the names of their machines. bad_input: a machine
// without a profile, a rank that is not there.
Result<ProfileTexts> fleet_profile(std::span<const RankProfile> ranks, std::vector<Link> links,
                                   const std::string& links_method);

}  // namespace hetero::hw
