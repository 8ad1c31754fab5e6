// Who holds which heads under tensor parallelism, and who sends what to whom where a state goes from m ranks to n: from
// counts alone, before anything moves.
#pragma once
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kv/shards.h"

namespace hetero::kv {

struct HeadCounts {
    std::uint32_t n_heads = 0, n_kv_heads = 0;  // of queries, of K and V
    friend bool operator==(const HeadCounts&, const HeadCounts&) = default;
};
[[nodiscard]] inline HeadCounts head_counts(const Identity& identity) noexcept {
    return {identity.n_heads, identity.n_kv_heads};
}

// usage where there are more ranks than query heads, or than hetero-kv(5) can number.
[[nodiscard]] Status check_tp_size(const HeadCounts& counts, std::uint32_t tp_size);
// The heads of one rank: query heads are divided evenly, in order, and a rank holds the KV heads that its own read. Two
// hold one where a group of query heads is cut; all heads are held several times where there are more ranks than KV
// heads. What the engine computes with, and where all divides what vLLM and others do.
[[nodiscard]] Shard shard_of(const HeadCounts& counts, std::uint32_t tp_size, std::uint32_t tp_rank) noexcept;

// The same as heads, of one rank that has them all, too.
[[nodiscard]] HeadRange heads_of(const HeadCounts& counts, std::uint32_t tp_size, std::uint32_t tp_rank) noexcept;

// One way between two ranks of different sets.
struct ShardLink {
    std::uint32_t from = 0, to = 0;  // of the m, of the n
    HeadRange heads;                 // that go this way
    friend bool operator==(const ShardLink&, const ShardLink&) = default;
};
// Every rank of the n gets each of its heads from one rank of the m that holds it: from the one of its own place where
// it can, and from the several that hold a head by turns. By receiver, then sender; sizes pass check_tp_size(). Rank 0
// always gets from rank 0.
[[nodiscard]] std::vector<ShardLink> plan_reshard(const HeadCounts& counts, std::uint32_t m, std::uint32_t n);

// For split_heads(): the whole of a state to all ranks of a set, the logits to the first.
[[nodiscard]] CutPlan cuts_for_ranks(std::uint32_t tp_size);

}  // namespace hetero::kv
