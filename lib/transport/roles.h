// What the ranks of an MPI job tell each other before anything else: who reads from whom, and who computes with whom.
// The bytes are those of hetero-wire(5).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kv/reshard_plan.h"
#include "transport/frames.h"

namespace hetero::transport {

inline constexpr int max_roles = 7;
inline constexpr std::uint32_t roles_version = 3;  // ranks of 1 do not answer PROBE, those of 2 know no shards

struct Roles {
    std::uint32_t magic = 0x52564B48;  // "HKVR"
    std::uint32_t version = roles_version;
    std::uint32_t program = 0;    // CRC-32C of the tool's name
    std::int32_t part = 0;        // MPI_APPNUM: which of the commands between the colons of mpirun
    std::int32_t group_size = 1;  // ranks that compute one model, or hold one state, together (--tp)
    std::int32_t shards = 0;      // 1: each rank of the group has a shard of a state, and endpoints
    // Of the state that is written, by those who know it and write from or to several ranks; else 0.
    std::int32_t n_heads = 0, n_kv_heads = 0;
    // So many ranks from inputs[0], outputs[0] on hold the shards of one state.
    std::int32_t input_ranks = 1, output_ranks = 1;
    std::int32_t inputs[max_roles], outputs[max_roles];  // ranks; -1: none

    Roles();
    Roles(const std::vector<int>& reads, const std::vector<int>& writes, std::string_view tool, int ranks);
};
static_assert(sizeof(Roles) == 96);

[[nodiscard]] std::string inputs_text(const Roles& roles);  // "mpi:1 and mpi:2", "no mpi: endpoint"
[[nodiscard]] std::string outputs_text(const Roles& roles);

[[nodiscard]] std::string ranks_text(int first, int ranks);  // "mpi:1", "mpi:1-3"

// The ranks that compute together, or hold one state together: neighbours in the same part that run the same tool with
// the same --tp above 1.
struct GroupRanks {
    int first = 0, size = 1;
};
[[nodiscard]] GroupRanks group_of(const std::vector<Roles>& all, int rank);

// The two sides of an endpoint where one or both are several ranks with a shard each.
struct ShardSides {
    GroupRanks sender, receiver;
    kv::HeadCounts heads;
};
// Nothing where `rank` has no such endpoint there. After settle_roles().
[[nodiscard]] std::optional<ShardSides> shard_sides(const std::vector<Roles>& all, int rank, bool reads);
// Whom `rank` exchanges frames with: those it names, of ranks with shards those that it shares heads with, in order.
[[nodiscard]] std::vector<int> peers_of(const std::vector<Roles>& all, int rank, bool reads);

// Groups are complete, all who read and write name each other (of a group its first rank), and there is an order in
// which every rank comes after those it reads from. Ranks of a group that computes have no endpoints, but for the
// first: clears them.
Status settle_roles(std::vector<Roles>& all);

}  // namespace hetero::transport
