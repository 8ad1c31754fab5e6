// Tools whose ranks compute one model together (--tp). The first rank of a group speaks for it: it alone reads stdin,
// writes outputs and reports; the others do the same work and are silent.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/tool.h"
#include "engine/session.h"
#include "kv/stream.h"
#include "transport/endpoint.h"
#include "transport/group.h"

namespace hetero::tool {

// Silences all ranks but the first, and refuses options that differ among them. After transport::prepare().
Status join_group(Tool& tool);

// What `read` gives on the first rank, on all of them.
Result<std::string> read_once(const std::function<Result<std::string>()>& read);

// 16 hex digits that name a run, the same on all ranks: shards of different ones are not put together.
Result<std::string> run_id();

// No file is there of the name that the state of all shards goes by.
Status check_no_whole(const std::string& path);

// Outputs of shards are files, and each rank can write its own; or with `to_ranks` other ranks.
Status check_shards(const Tool& tool, const std::vector<transport::Endpoint>& outputs, bool to_ranks);

// The first shard alone has the logits of a state.
void drop_logits_of_others(kv::Header& header);

// This rank's file of a state in shards; it becomes visible with those of the other ranks, as far as that can be known
// before.
Result<std::unique_ptr<kv::Sink>> open_own_shard(const transport::Endpoint& whole,
                                                 const transport::TransportOptions& options);

// How the state of a group is written: by its first rank for all, or in shards.
class GroupWriter {
public:
    explicit GroupWriter(bool shards) : shards_(shards && transport::group().size() > 1) {}

    [[nodiscard]] bool writes() const { return shards_ || transport::group().is_root(); }
    // The first rank writes what all hold.
    [[nodiscard]] bool gathers() const { return !shards_ && transport::group().size() > 1; }
    // What this rank writes of a layer. A call of all ranks.
    Result<kv::Layer> layer(const engine::Session& session, std::uint32_t layer) const {
        return shards_ ? session.export_layer(layer) : session.gather_layer(layer);
    }
    // Of one that prefill() has completed, with `end` tokens: see Session::observe_layers().
    Result<kv::Layer> layer(const engine::Session& session, std::uint32_t layer, std::uint64_t end) const {
        return shards_ ? session.export_layer(layer, end) : session.gather_layer(layer, end);
    }
    // Of all layers.
    Result<std::vector<kv::Layer>> layers(const engine::Session& session) const;
    // To where; `header` becomes that of the state of all, or of this rank's shard. Shards are committed on all ranks
    // or on none, as far as that can be known before.
    Result<std::unique_ptr<kv::Sink>> open(const transport::Endpoint& endpoint,
                                           const transport::TransportOptions& options, const engine::Session& session,
                                           kv::Header& header) const;

private:
    bool shards_;
};

// Says in the report what the collectives since `before` took.
void report_group(Tool& tool, const Communicator::Counters& before);

}  // namespace hetero::tool
