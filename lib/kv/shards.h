// Tensor-parallel shards of a KV state: cutting heads out of a state, and putting the shards of one together. Bytes are
// copied, never decoded: any codec, with the scales of the heads beside their values. Shards are written by any Sink
// through a Header whose `shard` is set.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/stream.h"

namespace hetero::kv {

// The heads that `shard` names, of a source that holds all of them: a whole state, or a shard with more heads. Layers
// without heads (mla) pass as they are. Heads that are not there: bad_input. The chunk length is left to the writer.
Result<std::unique_ptr<Source>> slice_heads(std::unique_ptr<Source> source, const Shard& shard);

// The whole state of which the sources are shards, in any order. They must agree in identity, weights, tokens, layer
// shapes and schemes, and together hold every head; heads that several hold, and layers without heads, must be the same
// bit for bit. What differs is bad_input, naming ranks and field, or ranks, layer and head. Header fields that may
// differ (provenance, logits that only some ranks store) are those of the lowest rank that has them.
Result<std::unique_ptr<Source>> merge_shards(std::vector<std::unique_ptr<Source>> shards, std::string name);

// bad_input where `header` is that of a shard, for those who need all heads; `name`: of the source.
[[nodiscard]] Status check_whole(const Header& header, const std::string& name);

}  // namespace hetero::kv
