#include "transport/roles.h"

#include <doctest/doctest.h>

#include <limits>

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

namespace {

// `size` ranks that hold shards of a state of 4 query and 2 KV heads where they write.
std::vector<Roles> holders(int part, int size, std::vector<int> reads, int n_reads, std::vector<int> writes,
                           int n_writes) {
    Roles one = rank_of(part, "kv-send", size, std::move(reads), std::move(writes));
    one.shards = size > 1 ? 1 : 0;
    one.input_ranks = n_reads;
    one.output_ranks = n_writes;
    if (one.outputs[0] >= 0) one.n_heads = 4, one.n_kv_heads = 2;
    return std::vector<Roles>(static_cast<std::size_t>(size), one);
}

std::vector<Roles> job(std::vector<std::vector<Roles>> parts) {
    std::vector<Roles> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

}  // namespace

TEST_CASE("ranks with shards have a link to each rank that they share heads with") {
    // Three ranks hold heads {0}, {0}, {1}; two want one each.
    auto all = job({holders(0, 3, {}, 1, {3}, 2), holders(1, 2, {0}, 3, {}, 1)});
    REQUIRE(settle_roles(all).has_value());
    CHECK(outputs_text(all[1]) == "mpi:3-4");
    CHECK(peers_of(all, 0, false) == std::vector{3});
    CHECK(peers_of(all, 1, false).empty());
    CHECK(peers_of(all, 2, false) == std::vector{4});
    CHECK(peers_of(all, 3, true) == std::vector{0});
    CHECK(peers_of(all, 4, true) == std::vector{2});
    CHECK(peers_of(all, 4, false).empty());
    const auto sides = shard_sides(all, 4, true);
    REQUIRE(sides);
    CHECK(sides->sender.first == 0);
    CHECK(sides->sender.size == 3);
    CHECK(sides->receiver.first == 3);
    CHECK(sides->heads == kv::HeadCounts{4, 2});
    CHECK_FALSE(shard_sides(all, 4, false));
    // To one rank, and from one.
    all = job({holders(0, 2, {}, 1, {2}, 1), holders(1, 1, {0}, 2, {}, 1)});
    REQUIRE(settle_roles(all).has_value());
    CHECK(peers_of(all, 2, true) == std::vector{0, 1});
    all = job({holders(0, 1, {}, 1, {1}, 4), holders(1, 4, {0}, 1, {}, 1)});
    REQUIRE(settle_roles(all).has_value());
    CHECK(peers_of(all, 0, false) == std::vector{1, 2, 3, 4});
    CHECK(peers_of(all, 3, true) == std::vector{0});
}

TEST_CASE("ranks with shards that do not name each other as what they are, are refused") {
    CHECK(refused(job({holders(0, 2, {}, 1, {2}, 2), holders(1, 3, {0}, 2, {}, 1)})) ==
          "rank 0 writes mpi:2-3, but the ranks there that hold one state together (--tp) are mpi:2-4");
    CHECK(refused(job({holders(0, 2, {}, 1, {2}, 2), holders(1, 2, {1}, 1, {}, 1)})) ==
          "mpi:0-1 is to write mpi:2-3, but rank 2 reads mpi:1");
    CHECK(refused(job({holders(0, 2, {}, 1, {2}, 3), holders(1, 2, {0}, 2, {}, 1)})) ==
          "rank 0 writes mpi:2-4, but this job has ranks 0 to 3");
    CHECK(refused(job({holders(0, 2, {}, 1, {1}, 2), holders(1, 1, {0}, 2, {}, 1)})) ==
          "rank 0 writes mpi:1-2, where it is itself");
    CHECK(refused(job({holders(0, 5, {}, 1, {5}, 1), holders(1, 1, {0}, 5, {}, 1)})) ==
          "5 ranks cannot divide the model's 4 attention heads");
    CHECK(refused(job({{rank_of(0, "kv-send", 1, {}, {1})}, holders(1, 2, {0}, 1, {}, 1)})) ==
          "rank 0 writes mpi:1, one of several that hold one state: name mpi:1-2");
    auto unknown = job({holders(0, 2, {}, 1, {2}, 2), holders(1, 2, {0}, 2, {}, 1)});
    for (Roles& one : unknown) one.n_heads = 0;
    CHECK(refused(unknown).find("does not know the heads") != std::string::npos);
    auto unlike = job({holders(0, 2, {}, 1, {2}, 2), holders(1, 2, {0}, 2, {}, 1)});
    unlike[1].n_kv_heads = 4;
    CHECK(refused(unlike, Errc::bad_input) == "rank 1 has a state of 4 heads (4 of K and V), rank 0 one of 4 (2)");
    for (const std::int32_t odd : {0, -1, std::numeric_limits<std::int32_t>::max()}) {
        auto hostile = job({holders(0, 2, {}, 1, {2}, 2), holders(1, 2, {0}, 2, {}, 1)});
        for (int rank : {0, 1}) hostile[static_cast<std::size_t>(rank)].output_ranks = odd;
        CHECK(!refused(hostile).empty());
        hostile = job({holders(0, 2, {}, 1, {2}, 2), holders(1, 2, {0}, 2, {}, 1)});
        for (int rank : {0, 1}) hostile[static_cast<std::size_t>(rank)].n_heads = odd;
        CHECK(!refused(hostile).empty());
    }
    // A group that computes has no shards to give.
    auto computes = job({holders(0, 2, {}, 1, {2}, 2), holders(1, 2, {0}, 2, {}, 1)});
    computes[0].shards = computes[1].shards = 0;
    CHECK(!refused(computes).empty());
}
