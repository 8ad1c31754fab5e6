// A fleet's profile as kinds of machines: those alike are one kind, as a planner counts them.
#pragma once
#include <string>
#include <vector>

#include "hw/profile.h"

namespace hetero::plan {

struct MachineKind {
    const hw::Machine* machine = nullptr;  // of the profile: the slowest of them
    std::vector<std::string> hosts;        // all of them; one that counts for several stands there as often
};

// Machines are alike where their processors, GPUs and memory are, and none is faster than another by more than
// `tolerance` in any rate that both have.
[[nodiscard]] std::vector<MachineKind> kinds_of(const hw::Profile& fleet, double tolerance = 0.2);

}  // namespace hetero::plan
