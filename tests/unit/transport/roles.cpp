#include "transport/roles.h"

#include <doctest/doctest.h>

using namespace hetero;
using namespace hetero::transport;

namespace {

Roles rank_of(int part, std::string_view tool, int tp, std::vector<int> reads = {}, std::vector<int> writes = {}) {
    Roles roles(reads, writes, tool, tp);
    roles.part = part;
    return roles;
}

std::string refused(std::vector<Roles> all, Errc code = Errc::usage) {
    const Status settled = settle_roles(all);
    REQUIRE_FALSE(settled.has_value());
    CHECK(settled.error().code == code);
    return settled.error().message;
}

}  // namespace

TEST_CASE("ranks of one part that ask for it are a group") {
    std::vector<Roles> all = {rank_of(0, "hetero-prefill", 2, {}, {3}), rank_of(0, "hetero-prefill", 2, {}, {3}),
                              rank_of(1, "kv-send", 1, {0}, {3}),       rank_of(2, "hetero-decode", 3, {2}),
                              rank_of(2, "hetero-decode", 3, {2}),      rank_of(2, "hetero-decode", 3, {2})};
    all[0].outputs[0] = all[1].outputs[0] = 2;
    REQUIRE(settle_roles(all).has_value());
    const int first[] = {0, 0, 2, 3, 3, 3}, size[] = {2, 2, 1, 3, 3, 3};
    for (int rank = 0; rank < 6; ++rank) {
        CHECK(group_of(all, rank).first == first[rank]);
        CHECK(group_of(all, rank).size == size[rank]);
    }
    CHECK(outputs_text(all[0]) == "mpi:2");
    CHECK(outputs_text(all[1]) == "no mpi: endpoint");
    CHECK(inputs_text(all[4]) == "no mpi: endpoint");
}

TEST_CASE("parts that run the same tool are groups of their own, and so are tools of one part") {
    std::vector<Roles> two_parts(4, rank_of(0, "hetero-decode", 2));
    two_parts[2].part = two_parts[3].part = 1;
    REQUIRE(settle_roles(two_parts).has_value());
    CHECK(group_of(two_parts, 1).size == 2);
    CHECK(group_of(two_parts, 3).first == 2);
    // As with srun --multi-prog, which numbers no parts.
    std::vector<Roles> tools = {rank_of(0, "hetero-prefill", 2), rank_of(0, "hetero-prefill", 2),
                                rank_of(0, "hetero-decode", 2), rank_of(0, "hetero-decode", 2)};
    REQUIRE(settle_roles(tools).has_value());
    CHECK(group_of(tools, 0).size == 2);
    CHECK(group_of(tools, 3).first == 2);
}

TEST_CASE("a group of another size than asked for is refused with both numbers") {
    CHECK(refused(std::vector<Roles>(3, rank_of(0, "hetero-prefill", 2))) ==
          "--tp 2 needs 2 ranks, but this part of the job has 3 (from rank 0 on): give mpirun -n 2");
    CHECK(refused({rank_of(0, "hetero-prefill", 1, {}, {1}), rank_of(1, "hetero-decode", 4, {0})}) ==
          "--tp 4 needs 4 ranks, but this part of the job has 1 (from rank 1 on): give mpirun -n 4");
    CHECK(refused({rank_of(0, "hetero-prefill", 2), rank_of(0, "hetero-prefill", 3)}) ==
          "rank 1 has --tp 3, but rank 0 of the same part of the job has --tp 2");
}

TEST_CASE("of a group the first rank reads and writes") {
    const std::string message = refused({rank_of(0, "hetero-prefill", 1, {}, {2}), rank_of(1, "hetero-decode", 2, {0}),
                                         rank_of(1, "hetero-decode", 2, {0})});
    CHECK(message == "rank 0 writes mpi:2, which computes with others: name their first, mpi:1");
}

TEST_CASE("ranks that do not name each other, that read in a ring, and strangers are refused") {
    CHECK(refused({rank_of(0, "a", 1, {}, {1}), rank_of(1, "b", 1)}) ==
          "rank 0 writes mpi:1, but rank 1 reads no mpi: endpoint");
    CHECK(refused({rank_of(0, "a", 1, {}, {7})}) == "rank 0 writes mpi:7, but this job has ranks 0 to 0");
    CHECK(refused({rank_of(0, "a", 1, {0})}) == "rank 0 reads mpi:0, which is itself");
    CHECK(refused({rank_of(0, "a", 1, {1}, {1}), rank_of(1, "b", 1, {0}, {0})}).find("a ring of ranks") !=
          std::string::npos);
    std::vector<Roles> strangers = {rank_of(0, "a", 1), rank_of(0, "a", 1)};
    strangers[1].magic = 1;
    CHECK(refused(strangers, Errc::peer) == "rank 1 is not a hetero tool of this version");
}
