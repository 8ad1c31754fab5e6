// Tools whose ranks compute one model together (--tp). The first rank of a group speaks for it: it alone reads stdin,
// writes outputs and reports; the others do the same work and are silent.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "common/tool.h"
#include "kv/stream.h"
#include "transport/endpoint.h"
#include "transport/group.h"

namespace hetero::tool {

// Silences all ranks but the first, and refuses options that differ among them. After transport::prepare().
Status join_group(Tool& tool);

// What `read` gives on the first rank, on all of them.
Result<std::string> read_once(const std::function<Result<std::string>()>& read);

// Where this rank writes a state that the first rank writes for all.
Result<std::unique_ptr<kv::Sink>> open_group_sink(const transport::Endpoint& endpoint,
                                                  const transport::TransportOptions& options);

// Says in the report what the collectives since `before` took.
void report_group(Tool& tool, const Communicator::Counters& before);

}  // namespace hetero::tool
