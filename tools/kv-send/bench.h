// kv-send --bench mpi:RANK.
#pragma once
#include <string>

#include "common/endpoints.h"
#include "common/tool.h"

namespace hetero::tool {

// The lower rank prints the table, or fills the report.
Status bench(Tool& tool, const std::string& peer, const TransferOptions& options);

}  // namespace hetero::tool
