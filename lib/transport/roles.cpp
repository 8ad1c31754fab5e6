#include "transport/roles.h"

#include <algorithm>

#include "base/hash.h"

namespace hetero::transport {
namespace {

using Ranks = std::int32_t[max_roles];

bool names(const Ranks& ranks, int rank) {
    return std::find(std::begin(ranks), std::end(ranks), rank) != std::end(ranks);
}

std::string list(const Ranks& ranks) {
    std::string out;
    for (const std::int32_t rank : ranks)
        if (rank >= 0) out += fmt::format("{}mpi:{}", out.empty() ? "" : " and ", rank);
    return out.empty() ? "no mpi: endpoint" : out;
}

// A tool writes after it has read, so ranks that read from each other in a ring would wait for ever: there must be an
// order in which every rank comes after those it reads from.
Status check_order(const std::vector<Roles>& all) {
    const int size = static_cast<int>(all.size());
    std::vector<int> unread(all.size());  // inputs that are not ready
    std::vector<int> ready;
    for (int rank = 0; rank < size; ++rank) {
        const auto& inputs = all[static_cast<std::size_t>(rank)].inputs;
        unread[static_cast<std::size_t>(rank)] =
            static_cast<int>(std::count_if(std::begin(inputs), std::end(inputs), [](int peer) { return peer >= 0; }));
        if (unread[static_cast<std::size_t>(rank)] == 0) ready.push_back(rank);
    }
    for (std::size_t done = 0; done < ready.size(); ++done) {
        for (const std::int32_t peer : all[static_cast<std::size_t>(ready[done])].outputs)
            if (peer >= 0 && --unread[static_cast<std::size_t>(peer)] == 0) ready.push_back(peer);
    }
    for (int rank = 0; rank < size; ++rank) {
        if (unread[static_cast<std::size_t>(rank)] > 0)
            return fail(Errc::usage,
                        "rank {} reads {} and writes {}: what it reads comes out of a ring of ranks, so none can begin",
                        rank, inputs_text(all[static_cast<std::size_t>(rank)]),
                        outputs_text(all[static_cast<std::size_t>(rank)]));
    }
    return {};
}

bool same_part(const Roles& a, const Roles& b) { return a.part == b.part && a.program == b.program; }

// Ranks [first, first + size) of one part, of which `rank` is one.
GroupRanks part_of(const std::vector<Roles>& all, int rank) {
    const auto size = static_cast<int>(all.size());
    const Roles& own = all[static_cast<std::size_t>(rank)];
    GroupRanks ranks{rank, 1};
    while (ranks.first > 0 && same_part(all[static_cast<std::size_t>(ranks.first - 1)], own)) --ranks.first;
    int end = rank + 1;
    while (end < size && same_part(all[static_cast<std::size_t>(end)], own)) ++end;
    ranks.size = end - ranks.first;
    return ranks;
}

Status check_groups(const std::vector<Roles>& all) {
    for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
        const GroupRanks part = part_of(all, rank);
        const std::int32_t tp = all[static_cast<std::size_t>(rank)].group_size;
        const std::int32_t first_tp = all[static_cast<std::size_t>(part.first)].group_size;
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

}  // namespace

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

std::string inputs_text(const Roles& roles) { return list(roles.inputs); }
std::string outputs_text(const Roles& roles) { return list(roles.outputs); }

GroupRanks group_of(const std::vector<Roles>& all, int rank) {
    if (all[static_cast<std::size_t>(rank)].group_size <= 1) return {rank, 1};
    return part_of(all, rank);
}

Status settle_roles(std::vector<Roles>& all) {
    const int size = static_cast<int>(all.size());
    for (int rank = 0; rank < size; ++rank) {
        const Roles& roles = all[static_cast<std::size_t>(rank)];
        if (roles.magic != Roles{}.magic || roles.version != roles_version)
            return fail(Errc::peer, "rank {} is not a hetero tool of this version", rank);
    }
    HETERO_CHECK(check_groups(all));
    for (int rank = 0; rank < size; ++rank) {
        Roles& roles = all[static_cast<std::size_t>(rank)];
        if (group_of(all, rank).first == rank) continue;
        std::fill(std::begin(roles.inputs), std::end(roles.inputs), -1);
        std::fill(std::begin(roles.outputs), std::end(roles.outputs), -1);
    }
    for (int rank = 0; rank < size; ++rank) {
        const Roles& roles = all[static_cast<std::size_t>(rank)];
        for (const bool reads : {true, false}) {
            for (const std::int32_t peer : reads ? roles.inputs : roles.outputs) {
                if (peer < 0) continue;
                const char* verb = reads ? "reads" : "writes";
                if (peer >= size)
                    return fail(Errc::usage, "rank {} {} mpi:{}, but this job has ranks 0 to {}", rank, verb, peer,
                                size - 1);
                if (peer == rank) return fail(Errc::usage, "rank {} {} mpi:{}, which is itself", rank, verb, peer);
                if (const int first = group_of(all, peer).first; first != peer)
                    return fail(Errc::usage, "rank {} {} mpi:{}, which computes with others: name their first, mpi:{}",
                                rank, verb, peer, first);
                const Roles& other = all[static_cast<std::size_t>(peer)];
                if (!names(reads ? other.outputs : other.inputs, rank))
                    return fail(Errc::usage, "rank {} {} mpi:{}, but rank {} {} {}", rank, verb, peer, peer,
                                reads ? "writes" : "reads", list(reads ? other.outputs : other.inputs));
            }
        }
    }
    return check_order(all);
}

}  // namespace hetero::transport
