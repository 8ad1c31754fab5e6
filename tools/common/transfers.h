// What a tool says of the states that it moved over links.
#pragma once
#include <chrono>
#include <optional>

#include "common/endpoints.h"
#include "common/tool.h"

namespace hetero::tool {

// In the report and as a note: bytes and time of a transfer that has ended, and how much of it computing hid where
// `computed_at` says when it ended: 1 - visible time / transfer time. The visible time is that after `computed_at`.
void report_transfer(Tool& tool, const transport::Endpoint& endpoint, bool sending,
                     std::optional<std::chrono::steady_clock::time_point> computed_at = {});

// The layers of all transfers as spans of the trace.
void trace_transfers(const Endpoints& endpoints);

}  // namespace hetero::tool
