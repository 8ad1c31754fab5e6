#include "transport/roles.h"

#include <algorithm>

#include "base/hash.h"

namespace hetero::transport {
namespace {

using Ranks = std::int32_t[max_roles];

bool names(const Ranks& ranks, int rank) {
    return std::find(std::begin(ranks), std::end(ranks), rank) != std::end(ranks);
}

std::string list(const Ranks& ranks, int count) {
    std::string out;
    for (const std::int32_t rank : ranks) {
        if (rank < 0) continue;
        out += fmt::format("{}{}", out.empty() ? "" : " and ", ranks_text(rank, out.empty() ? count : 1));
    }
    return out.empty() ? "no mpi: endpoint" : out;
}

const Roles& at(const std::vector<Roles>& all, int rank) { return all[static_cast<std::size_t>(rank)]; }
const Ranks& ranks_of(const Roles& roles, bool reads) { return reads ? roles.inputs : roles.outputs; }
int count_of(const Roles& roles, bool reads) { return reads ? roles.input_ranks : roles.output_ranks; }

constexpr std::int32_t max_heads = 1 << 16;  // before anything is counted with what a rank says

// Whether the endpoint of that side is of shards: of this rank, of those it names, or both.
bool of_shards(const Roles& roles, bool reads) {
    return ranks_of(roles, reads)[0] >= 0 && (roles.shards != 0 || count_of(roles, reads) > 1);
}

bool computes(const Roles& roles) { return roles.group_size > 1 && roles.shards == 0; }

// A tool writes after it has read, so ranks that read from each other in a ring would wait for ever: there must be an
// order in which every rank comes after those it reads from.
Status check_order(const std::vector<Roles>& all) {
    const int size = static_cast<int>(all.size());
    std::vector<std::size_t> unread(all.size());  // inputs that are not ready
    std::vector<int> ready;
    for (int rank = 0; rank < size; ++rank) {
        unread[static_cast<std::size_t>(rank)] = peers_of(all, rank, true).size();
        if (unread[static_cast<std::size_t>(rank)] == 0) ready.push_back(rank);
    }
    for (std::size_t done = 0; done < ready.size(); ++done) {
        for (const int peer : peers_of(all, ready[done], false))
            if (--unread[static_cast<std::size_t>(peer)] == 0) ready.push_back(peer);
    }
    for (int rank = 0; rank < size; ++rank) {
        if (unread[static_cast<std::size_t>(rank)] > 0)
            return fail(Errc::usage,
                        "rank {} reads {} and writes {}: what it reads comes out of a ring of ranks, so none can begin",
                        rank, inputs_text(at(all, rank)), outputs_text(at(all, rank)));
    }
    return {};
}

bool same_part(const Roles& a, const Roles& b) {
    return a.part == b.part && a.program == b.program && a.shards == b.shards;
}

// Ranks [first, first + size) of one part, of which `rank` is one.
GroupRanks part_of(const std::vector<Roles>& all, int rank) {
    const auto size = static_cast<int>(all.size());
    const Roles& own = at(all, rank);
    GroupRanks ranks{rank, 1};
    while (ranks.first > 0 && same_part(at(all, ranks.first - 1), own)) --ranks.first;
    int end = rank + 1;
    while (end < size && same_part(at(all, end), own)) ++end;
    ranks.size = end - ranks.first;
    return ranks;
}

Status check_groups(const std::vector<Roles>& all) {
    for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
        const GroupRanks part = part_of(all, rank);
        const std::int32_t tp = at(all, rank).group_size;
        const std::int32_t first_tp = at(all, part.first).group_size;
        if (tp != first_tp)
            return fail(Errc::usage, "rank {} has --tp {}, but rank {} of the same part of the job has --tp {}", rank,
                        tp, part.first, first_tp);
        if (tp > 1 && part.size != tp)
            return fail(Errc::usage,
                        "--tp {} needs {} ranks, but this part of the job has {} (from rank {} on): give mpirun -n {}",
                        tp, tp, part.size, part.first, tp);
    }
    return {};
}

// The two sides of an endpoint of shards name each other, and hold one state each.
Status check_shards(const std::vector<Roles>& all, int rank, bool reads) {
    const auto size = static_cast<int>(all.size());
    const Roles& own = at(all, rank);
    const char* verb = reads ? "reads" : "writes";
    const GroupRanks mine = group_of(all, rank);
    const int first = ranks_of(own, reads)[0], count = count_of(own, reads);
    const std::string named = ranks_text(first, count);
    if (std::count_if(std::begin(ranks_of(own, reads)), std::end(ranks_of(own, reads)), [](int r) { return r >= 0; }) >
        1)
        return fail(Errc::usage, "rank {} {} {}: shards of one state are all that a rank can have on a side", rank,
                    verb, list(ranks_of(own, reads), count));
    if (count < 1 || first > size - count)
        return fail(Errc::usage, "rank {} {} {}, but this job has ranks 0 to {}", rank, verb, named, size - 1);
    if (first < mine.first + mine.size && mine.first < first + count)
        return fail(Errc::usage, "rank {} {} {}, where it is itself", rank, verb, named);
    const Roles& leader = at(all, mine.first);
    if (ranks_of(leader, reads)[0] != first || count_of(leader, reads) != count)
        return fail(Errc::usage, "rank {} {} {}, but rank {} of the same state {} {}", rank, verb, named, mine.first,
                    verb, list(ranks_of(leader, reads), count_of(leader, reads)));
    if (computes(at(all, first)))
        return fail(Errc::usage, "rank {} {} {}, which computes with others: it has no shards to exchange", rank, verb,
                    named);
    const GroupRanks theirs = group_of(all, first);
    if (theirs.first != first || theirs.size != count)
        return fail(Errc::usage, "rank {} {} {}, but the ranks there that hold one state together (--tp) are {}", rank,
                    verb, named, ranks_text(theirs.first, theirs.size));
    const Roles& other = at(all, first);
    if (ranks_of(other, !reads)[0] != mine.first || count_of(other, !reads) != mine.size)
        return fail(Errc::usage, "{} {} {}, but rank {} {} {}", ranks_text(mine.first, mine.size),
                    reads ? "is to read" : "is to write", named, first, reads ? "writes" : "reads",
                    list(ranks_of(other, !reads), count_of(other, !reads)));
    const Roles& sender = reads ? other : leader;
    if (sender.n_heads < 1 || sender.n_heads > max_heads || sender.n_kv_heads < 1 ||
        sender.n_heads % sender.n_kv_heads != 0)
        return fail(Errc::usage, "{} does not know the heads of what it writes: shards start from files",
                    ranks_text(reads ? first : mine.first, 1));
    if (!reads && (own.n_heads != sender.n_heads || own.n_kv_heads != sender.n_kv_heads))
        return fail(Errc::bad_input, "rank {} has a state of {} heads ({} of K and V), rank {} one of {} ({})", rank,
                    own.n_heads, own.n_kv_heads, mine.first, sender.n_heads, sender.n_kv_heads);
    const kv::HeadCounts heads{static_cast<std::uint32_t>(sender.n_heads),
                               static_cast<std::uint32_t>(sender.n_kv_heads)};
    HETERO_CHECK(kv::check_tp_size(heads, static_cast<std::uint32_t>(mine.size)));
    return kv::check_tp_size(heads, static_cast<std::uint32_t>(theirs.size));
}

}  // namespace

std::string ranks_text(int first, int ranks) {
    return ranks <= 1 ? fmt::format("mpi:{}", first) : fmt::format("mpi:{}-{}", first, std::int64_t{first} + ranks - 1);
}

Roles::Roles() {
    std::fill(std::begin(inputs), std::end(inputs), -1);
    std::fill(std::begin(outputs), std::end(outputs), -1);
}

Roles::Roles(const std::vector<int>& reads, const std::vector<int>& writes, std::string_view tool, int ranks)
    : Roles() {
    program = crc32c(std::as_bytes(std::span(tool)));
    group_size = ranks;
    std::copy_n(reads.begin(), std::min<std::size_t>(reads.size(), max_roles), inputs);
    std::copy_n(writes.begin(), std::min<std::size_t>(writes.size(), max_roles), outputs);
}

std::string inputs_text(const Roles& roles) { return list(roles.inputs, roles.input_ranks); }
std::string outputs_text(const Roles& roles) { return list(roles.outputs, roles.output_ranks); }

std::optional<ShardSides> shard_sides(const std::vector<Roles>& all, int rank, bool reads) {
    if (!of_shards(at(all, rank), reads)) return std::nullopt;
    const GroupRanks mine = group_of(all, rank), theirs = group_of(all, ranks_of(at(all, rank), reads)[0]);
    ShardSides sides{reads ? theirs : mine, reads ? mine : theirs, {}};
    const Roles& sender = at(all, sides.sender.first);
    sides.heads = {static_cast<std::uint32_t>(sender.n_heads), static_cast<std::uint32_t>(sender.n_kv_heads)};
    return sides;
}

std::vector<int> peers_of(const std::vector<Roles>& all, int rank, bool reads) {
    std::vector<int> peers;
    const auto sides = shard_sides(all, rank, reads);
    if (!sides) {
        for (const std::int32_t peer : ranks_of(at(all, rank), reads))
            if (peer >= 0) peers.push_back(peer);
        return peers;
    }
    const auto links = kv::plan_reshard(sides->heads, static_cast<std::uint32_t>(sides->sender.size),
                                        static_cast<std::uint32_t>(sides->receiver.size));
    for (const kv::ShardLink& link : links) {
        const int from = sides->sender.first + static_cast<int>(link.from),
                  to = sides->receiver.first + static_cast<int>(link.to);
        if ((reads ? to : from) == rank) peers.push_back(reads ? from : to);
    }
    return peers;
}

GroupRanks group_of(const std::vector<Roles>& all, int rank) {
    if (at(all, rank).group_size <= 1) return {rank, 1};
    return part_of(all, rank);
}

Status settle_roles(std::vector<Roles>& all) {
    const int size = static_cast<int>(all.size());
    for (int rank = 0; rank < size; ++rank) {
        const Roles& roles = at(all, rank);
        if (roles.magic != Roles{}.magic || roles.version != roles_version)
            return fail(Errc::peer, "rank {} is not a hetero tool of this version", rank);
    }
    HETERO_CHECK(check_groups(all));
    for (int rank = 0; rank < size; ++rank) {
        Roles& roles = all[static_cast<std::size_t>(rank)];
        if (!computes(roles) || group_of(all, rank).first == rank) continue;
        std::fill(std::begin(roles.inputs), std::end(roles.inputs), -1);
        std::fill(std::begin(roles.outputs), std::end(roles.outputs), -1);
    }
    for (int rank = 0; rank < size; ++rank) {
        const Roles& roles = at(all, rank);
        for (const bool reads : {true, false}) {
            if (of_shards(roles, reads)) {
                HETERO_CHECK(check_shards(all, rank, reads));
                continue;
            }
            for (const std::int32_t peer : ranks_of(roles, reads)) {
                if (peer < 0) continue;
                const char* verb = reads ? "reads" : "writes";
                if (peer >= size)
                    return fail(Errc::usage, "rank {} {} mpi:{}, but this job has ranks 0 to {}", rank, verb, peer,
                                size - 1);
                if (peer == rank) return fail(Errc::usage, "rank {} {} mpi:{}, which is itself", rank, verb, peer);
                if (const GroupRanks theirs = group_of(all, peer); theirs.size > 1 && !computes(at(all, peer)))
                    return fail(Errc::usage, "rank {} {} mpi:{}, one of several that hold one state: name {}", rank,
                                verb, peer, ranks_text(theirs.first, theirs.size));
                if (const int first = group_of(all, peer).first; first != peer)
                    return fail(Errc::usage, "rank {} {} mpi:{}, which computes with others: name their first, mpi:{}",
                                rank, verb, peer, first);
                const Roles& other = at(all, peer);
                if (!names(ranks_of(other, !reads), rank))
                    return fail(Errc::usage, "rank {} {} mpi:{}, but rank {} {} {}", rank, verb, peer, peer,
                                reads ? "writes" : "reads", list(ranks_of(other, !reads), count_of(other, !reads)));
            }
        }
    }
    return check_order(all);
}

}  // namespace hetero::transport
