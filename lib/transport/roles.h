// What the ranks of an MPI job tell each other before anything else: who reads from whom, and who computes with whom.
// The bytes are those of hetero-wire(5).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "transport/frames.h"

namespace hetero::transport {

inline constexpr int max_roles = 7;
inline constexpr std::uint32_t roles_version = 2;  // ranks of 1 do not answer PROBE

struct Roles {
    std::uint32_t magic = 0x52564B48;  // "HKVR"
    std::uint32_t version = roles_version;
    std::uint32_t program = 0;    // CRC-32C of the tool's name
    std::int32_t part = 0;        // MPI_APPNUM: which of the commands between the colons of mpirun
    std::int32_t group_size = 1;  // ranks that compute one model together (--tp)
    std::int32_t inputs[max_roles], outputs[max_roles];  // ranks; -1: none

    Roles();
    Roles(const std::vector<int>& reads, const std::vector<int>& writes, std::string_view tool, int ranks);
};
static_assert(sizeof(Roles) == 76);

[[nodiscard]] std::string inputs_text(const Roles& roles);  // "mpi:1 and mpi:2", "no mpi: endpoint"
[[nodiscard]] std::string outputs_text(const Roles& roles);

// The ranks that compute together: neighbours in the same part that run the same tool with the same --tp above 1.
struct GroupRanks {
    int first = 0, size = 1;
};
[[nodiscard]] GroupRanks group_of(const std::vector<Roles>& all, int rank);

// Groups are complete, all who read and write name each other (of a group its first rank), and there is an order in
// which every rank comes after those it reads from. Ranks of a group but the first have no endpoints: clears them.
Status settle_roles(std::vector<Roles>& all);

}  // namespace hetero::transport
