// hw-probe check: the list that one goes through before a job is started.
#pragma once
#include <string>

#include "common/tool.h"
#include "hw/probe.h"

namespace hetero::tool {

struct CheckCommand {
    std::string plan;     // a deployment plan (hetero-plan); empty: only what holds for any job
    std::string profile;  // of the machine or the fleet; empty: this machine, measured briefly
    std::string machine;  // that the plan means; empty: those of the profile that it names
};

// check_failed where a check fails; the report is complete then.
Status check_machines(Tool& tool, const CheckCommand& command, const hw::ProbeOptions& options);

}  // namespace hetero::tool
