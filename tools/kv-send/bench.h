// kv-send --bench mpi:RANK.
#pragma once
#include <string>
#include <vector>

#include "common/endpoints.h"
#include "common/tool.h"

namespace hetero::tool {

// The lower rank prints the table, or fills the report.
// `sizes`: of chunks; empty: a sweep.
Status bench(Tool& tool, const std::string& peer, const std::vector<std::string>& sizes,
             const TransferOptions& options);

}  // namespace hetero::tool
