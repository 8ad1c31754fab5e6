// Endpoints of states on the command line.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "common/tool.h"
#include "transport/endpoint.h"

namespace hetero::tool {

struct TransferOptions {
    bool dry_run = false;
    double timeout_s = 10;
    double wait_s = 0;  // for the other job of mpi-port:FILE; 0: timeout_s
    std::uint64_t max_memory_bytes = 1ULL << 30;
    std::uint64_t tp = 1;  // ranks that compute the model together
    bool shards = false;   // each of them writes a file of its own
    // Or holds a shard of a state, of so many heads where that is known, and has mpi: endpoints of its own.
    bool hold_shards = false;
    kv::HeadCounts heads;
    transport::Faults faults;
    std::uint64_t max_bytes_per_s = 0;  // to each mpi: output; 0: no limit
    bool pages = false;                 // files may be in the layout of another engine (.safetensors)

    [[nodiscard]] transport::TransportOptions transport(const Tool& tool) const;
};
// Whether it is a file in the layout of other engines (kv/pages_file.h).
[[nodiscard]] bool is_pages(const transport::Endpoint& endpoint);

// --timeout, --wait, --max-memory, --max-rate and --fault.
void add_transfer_options(OptionTable& table, TransferOptions& options);
// --tp and --shards
void add_tp_options(OptionTable& table, TransferOptions& options);
void add_dry_run_option(OptionTable& table, TransferOptions& options, std::string help);

// Parses the endpoints (empty text: none), and checks all that can be known before long work: see transport::prepare,
// that stdout is not asked to carry both a state and a document, and that no output is one of the files read or another
// output; `others` are those that are not states. With --tp the ranks of the group meet here (common/group.h).
struct Endpoints {
    std::vector<transport::Endpoint> inputs, outputs;
};
Result<Endpoints> prepare_endpoints(Tool& tool, const std::vector<std::string>& inputs,
                                    const std::vector<std::string>& outputs, const TransferOptions& options,
                                    Files others = {});

// Opens a state and shows the progress of reading it as `label`. `seconds` is what opening took from the first byte on:
// an upstream that still computes is waited for before. In a group all ranks read a file; of a pipe or another rank the
// first one reads and hands out.
struct OpenedSource {
    std::unique_ptr<kv::Source> source;
    double seconds = 0;
};
Result<OpenedSource> open_source(const Tool& tool, const transport::Endpoint& endpoint,
                                 const transport::TransportOptions& options, std::string label);

// The source read ahead of its use by another thread, where it is no link, this process works alone and a thread is to
// spare of `threads` (0: as many as there may be).
[[nodiscard]] std::unique_ptr<kv::Source> ahead(std::unique_ptr<kv::Source> source, const transport::Endpoint& from,
                                                std::uint64_t threads);

// All layers from `source` to `sink`, unchanged; commits only what the source has confirmed. Returns the seconds since
// the other side of `sink` was ready.
Result<double> copy_state(kv::Source& source, kv::Sink& sink);

}  // namespace hetero::tool
