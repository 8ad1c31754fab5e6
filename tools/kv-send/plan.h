// kv-send --dry-run: what would be sent.
#pragma once
#include <optional>
#include <string>

#include "common/tool.h"
#include "kv/state.h"
#include "transport/endpoint.h"

namespace hetero::tool {

// Fills the report and, without --json, prints the table. `sent` is the header as it would be sent, `output` where to, if
// that was said. An error is what the transfer would fail with.
Status plan(Tool& tool, const transport::Endpoint& input, const kv::Header& sent,
            const std::optional<transport::Endpoint>& output);

}  // namespace hetero::tool
