// Endpoints of states on the command line.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "common/tool.h"
#include "transport/endpoint.h"

namespace hetero::tool {

struct TransferOptions {
    bool force = false;
    double timeout_s = 10;
    std::uint64_t max_memory_bytes = 1ULL << 30;

    [[nodiscard]] transport::TransportOptions transport() const;
};
// --timeout and --max-memory; --force where the tool writes a state.
void add_transfer_options(OptionTable& table, TransferOptions& options, bool writes);

// Parses the endpoints (empty text: none), and checks all that can be known before long work: see transport::prepare,
// and that stdout is not asked to carry both a state and a document.
struct Endpoints {
    std::vector<transport::Endpoint> inputs, outputs;
};
Result<Endpoints> prepare_endpoints(const Tool& tool, const std::vector<std::string>& inputs,
                                    const std::vector<std::string>& outputs, const TransferOptions& options);

// All layers from `source` to `sink`, unchanged; commits only what the source has confirmed.
Status copy_state(kv::Source& source, kv::Sink& sink);

}  // namespace hetero::tool
