// A state between ranks that hold shards of it: from the m of one part of a job to the n of another
// (kv/reshard_plan.h). Every two ranks that share heads have a link of their own, which carries those heads and nothing
// else.
#pragma once
#include <functional>
#include <memory>

#include "kv/stream.h"
#include "transport/roles.h"

namespace hetero::transport {

// What the receiving rank `rank` holds: a shard of n, the whole state where n is 1. `open` gives the state of the link
// from a rank, which is waited for.
Result<std::unique_ptr<kv::Source>> shard_source(const ShardSides& sides, int rank,
                                                 const std::function<Result<std::unique_ptr<kv::Source>>(int)>& open);
// Takes what the sending rank `rank` holds. Logits go with one link, from the first rank to the first.
Result<std::unique_ptr<kv::Sink>> shard_sink(const ShardSides& sides, int rank,
                                             const std::function<Result<std::unique_ptr<kv::Sink>>(int)>& open);

}  // namespace hetero::transport
