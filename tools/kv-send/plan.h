// kv-send --dry-run: what would be sent.
#pragma once
#include <optional>
#include <string>

#include "common/tool.h"
#include "kv/state.h"
#include "route.h"
#include "transport/endpoint.h"

namespace hetero::tool {

// Fills the report and, without --json, prints the tables. `read` is the header of what is read, all shards together,
// `sent` as it would be sent, `output` where to, if that was said. An error is what the transfer would fail with.
Status plan(Tool& tool, const Route& route, const transport::Endpoint& input, const kv::Header& read,
            const kv::Header& sent, const std::optional<transport::Endpoint>& output, std::uint64_t threads);

}  // namespace hetero::tool
