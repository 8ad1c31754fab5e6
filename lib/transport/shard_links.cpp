#include "transport/shard_links.h"

#include <algorithm>

namespace hetero::transport {
namespace {

std::uint32_t place_in(const GroupRanks& ranks, int rank) { return static_cast<std::uint32_t>(rank - ranks.first); }
std::uint32_t count(const GroupRanks& ranks) { return static_cast<std::uint32_t>(ranks.size); }

std::vector<kv::ShardLink> links_of(const ShardSides& sides, int rank, bool reads) {
    std::vector<kv::ShardLink> links = kv::plan_reshard(sides.heads, count(sides.sender), count(sides.receiver));
    const std::uint32_t own = place_in(reads ? sides.receiver : sides.sender, rank);
    std::erase_if(links, [&](const kv::ShardLink& link) { return (reads ? link.to : link.from) != own; });
    return links;
}

// What the state on a link says that it is: a piece of the sender's shard, or the receiver's where one rank has all.
kv::Shard shard_on(const ShardSides& sides, const kv::ShardLink& link) {
    if (sides.sender.size == 1) return kv::shard_of(sides.heads, count(sides.receiver), link.to);
    return {count(sides.sender), link.from, link.heads.first, link.heads.count};
}

Status check_heads(const ShardSides& sides, const kv::Header& header, const std::string& name) {
    const kv::HeadCounts found = kv::head_counts(header.identity);
    if (found == sides.heads) return {};
    return fail(Errc::bad_input, "{}: a state of {} heads ({} of K and V), one of {} ({}) was announced", name,
                found.n_heads, found.n_kv_heads, sides.heads.n_heads, sides.heads.n_kv_heads);
}

}  // namespace

// Links are opened and served in the order of ranks, layer after layer, on both sides: of the pieces that are not
// delivered, the first in the order of layer, sender and receiver is never waited for in vain.
Result<std::unique_ptr<kv::Source>> shard_source(const ShardSides& sides, int rank,
                                                 const std::function<Result<std::unique_ptr<kv::Source>>(int)>& open) {
    std::vector<std::unique_ptr<kv::Source>> sources;
    for (const kv::ShardLink& link : links_of(sides, rank, true)) {
        HETERO_TRY(auto source, open(sides.sender.first + static_cast<int>(link.from)));
        HETERO_CHECK(check_heads(sides, source->header(), source->name()));
        if (const kv::Shard expected = shard_on(sides, link); source->header().shard != expected)
            return fail(Errc::bad_input, "{}: {} of shard {} of {} came, {} of shard {} of {} are expected",
                        source->name(), kv::to_text(kv::heads_of(source->header())), source->header().shard.tp_rank,
                        source->header().shard.tp_size, kv::to_text(link.heads), expected.tp_rank, expected.tp_size);
        sources.push_back(std::move(source));
    }
    return kv::reshard(std::move(sources),
                       kv::shard_of(sides.heads, count(sides.receiver), place_in(sides.receiver, rank)),
                       ranks_text(sides.sender.first, sides.sender.size));
}

Result<std::unique_ptr<kv::Sink>> shard_sink(const ShardSides& sides, int rank,
                                             const std::function<Result<std::unique_ptr<kv::Sink>>(int)>& open) {
    const std::vector<kv::ShardLink> links = links_of(sides, rank, false);
    std::vector<std::unique_ptr<kv::Sink>> sinks;
    for (const kv::ShardLink& link : links) {
        HETERO_TRY(sinks.emplace_back(), open(sides.receiver.first + static_cast<int>(link.to)));
    }
    const std::string name = ranks_text(sides.receiver.first, sides.receiver.size);
    const kv::CutPlan plan = [sides, links, name](const kv::Header& header) -> Result<std::vector<kv::Cut>> {
        HETERO_CHECK(check_heads(sides, header, name));
        std::vector<kv::Cut> cuts;
        for (const kv::ShardLink& link : links) cuts.push_back({shard_on(sides, link), link.from == 0 && link.to == 0});
        return cuts;
    };
    return kv::split_heads(std::move(sinks), plan, name);
}

}  // namespace hetero::transport
