// States that the ranks of a group read: one for all, or each its own heads.
#pragma once
#include <memory>

#include "base/communicator.h"
#include "kv/reshard_plan.h"
#include "kv/stream.h"

namespace hetero::transport {

// `opened` is rank 0's source, or why it could not be opened; the other ranks give nothing. What rank 0 reads is handed
// out layer by layer; finish() succeeds everywhere or nowhere. All ranks make the same calls. `group` outlives the
// source.
Result<std::unique_ptr<kv::Source>> hand_out(Communicator& group, Result<std::unique_ptr<kv::Source>> opened);

// Succeeds where all ranks have opened a state of the same header, whole or a shard each.
Status check_same_state(Communicator& group, const Result<std::unique_ptr<kv::Source>>& opened);

// The heads that this rank of `group` computes with. usage: there are more ranks than heads.
Result<kv::Shard> own_shard(const Communicator& group, const kv::HeadCounts& heads);

}  // namespace hetero::transport
