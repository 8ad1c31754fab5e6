#include "kv/reshard_plan.h"

#include <algorithm>

namespace hetero::kv {
namespace {

// Whether ranks `a` of `m` and `b` of `n` cover a common part of the whole.
bool overlap(std::uint64_t a, std::uint64_t m, std::uint64_t b, std::uint64_t n) noexcept {
    return a * n < (b + 1) * m && b * m < (a + 1) * n;
}

}  // namespace

Status check_tp_size(const HeadCounts& counts, std::uint32_t tp_size) {
    if (tp_size >= 1 && tp_size <= std::min(counts.n_heads, max_ranks)) return {};
    return fail(Errc::usage, "{} ranks cannot divide the model's {} attention heads", tp_size, counts.n_heads);
}

Shard shard_of(const HeadCounts& counts, std::uint32_t tp_size, std::uint32_t tp_rank) noexcept {
    if (tp_size <= 1) return {};
    const std::uint64_t n = counts.n_heads, group = std::max(1U, counts.n_heads / counts.n_kv_heads);
    const std::uint64_t begin = n * tp_rank / tp_size, end = n * (tp_rank + 1) / tp_size;
    const auto first = static_cast<std::uint32_t>(begin / group),
               last = static_cast<std::uint32_t>((end + group - 1) / group);
    return {tp_size, tp_rank, first, last - first};
}

HeadRange heads_of(const HeadCounts& counts, std::uint32_t tp_size, std::uint32_t tp_rank) noexcept {
    const Shard shard = shard_of(counts, tp_size, tp_rank);
    return shard.head_count == 0 ? HeadRange{0, counts.n_kv_heads} : HeadRange{shard.head_first, shard.head_count};
}

std::vector<ShardLink> plan_reshard(const HeadCounts& counts, std::uint32_t m, std::uint32_t n) {
    std::vector<ShardLink> links;
    for (std::uint32_t to = 0; to < n; ++to) {
        const HeadRange wanted = heads_of(counts, n, to);
        for (std::uint32_t head = wanted.first; head < wanted.end(); ++head) {
            std::vector<std::uint32_t> near, all;
            for (std::uint32_t from = 0; from < m; ++from) {
                if (!heads_of(counts, m, from).holds(head)) continue;
                all.push_back(from);
                if (overlap(from, m, to, n)) near.push_back(from);
            }
            const std::vector<std::uint32_t>& holders = near.empty() ? all : near;
            const std::uint32_t from = holders[to % holders.size()];
            if (!links.empty() && links.back().to == to && links.back().from == from) {
                ++links.back().heads.count;
            } else {
                links.push_back({from, to, {head, 1}});
            }
        }
    }
    return links;
}

CutPlan cuts_for_ranks(std::uint32_t tp_size) {
    return [tp_size](const Header& header) -> Result<std::vector<Cut>> {
        const HeadCounts counts = head_counts(header.identity);
        HETERO_CHECK(check_tp_size(counts, tp_size));
        std::vector<Cut> cuts;
        for (std::uint32_t rank = 0; rank < tp_size; ++rank)
            cuts.push_back({shard_of(counts, tp_size, rank), rank == 0});
        return cuts;
    };
}

}  // namespace hetero::kv
