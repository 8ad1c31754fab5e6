// hw-probe --links: one profile of the machines of an MPI job, and of the links between its ranks.
#pragma once
#include "common/tool.h"
#include "hw/probe.h"

namespace hetero::tool {

// The profile on rank 0; the others are silenced and get an empty one.
Result<hw::ProfileTexts> probe_fleet(Tool& tool, const hw::ProbeOptions& options);

}  // namespace hetero::tool
