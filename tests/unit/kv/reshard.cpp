// States between sets of shards: who holds and sends what, against counting by hand, and the bytes, against copying
// element by element.
#include <algorithm>
#include <random>
#include <set>

#include "kinds.h"
#include "kv/reshard_plan.h"
#include "kv/shard_files.h"
#include "kv/shards.h"
#include "sinks.h"

using namespace hetero;
using namespace hetero::test;
using kv::HeadCounts;
using kv::HeadRange;
using kv::PartId;

namespace {

// The KV heads of a rank, from the definition: those that its query heads read, one by one.
std::set<std::uint32_t> heads_by_hand(const HeadCounts& counts, std::uint32_t size, std::uint32_t rank) {
    std::set<std::uint32_t> heads;
    for (std::uint32_t query = 0; query < counts.n_heads; ++query) {
        std::uint32_t owner = 0;  // the last rank that begins at or before it
        for (std::uint32_t r = 0; r < size; ++r)
            if (counts.n_heads * r / size <= query) owner = r;
        if (owner == rank) heads.insert(query / (counts.n_heads / counts.n_kv_heads));
    }
    return heads;
}

std::set<std::uint32_t> as_set(HeadRange range) {
    std::set<std::uint32_t> heads;
    for (std::uint32_t head = range.first; head < range.end(); ++head) heads.insert(head);
    return heads;
}

std::unique_ptr<kv::Source> source_of(const kv::State& state, std::string name) {
    return kv::memory_source(std::make_shared<const kv::State>(state), std::move(name));
}

// The shard by indexing every element.
kv::State shard_by_hand(const kv::State& whole, const kv::Shard& shard) {
    if (shard.tp_size == 1) return whole;
    kv::State out = whole;
    out.header.shard = shard;
    if (shard.tp_rank != 0)
        for (auto& sequence : out.header.sequences) sequence.logits.clear();
    const std::size_t all = whole.header.identity.n_kv_heads;
    for (std::size_t s = 0; s < whole.layers.size(); ++s) {
        for (std::size_t l = 0; l < whole.layers[s].size(); ++l) {
            for (const PartId id : {PartId::k, PartId::v}) {
                for (const auto array : kv::part_arrays) {
                    const kv::Tensor& from = whole.layers[s][l].part(id).*array;
                    kv::Tensor& to = out.layers[s][l].part(id).*array;
                    if (from.empty()) continue;
                    to.shape[1] = shard.head_count;
                    to.bytes.clear();
                    if (from.bytes.empty()) continue;
                    const std::size_t per_head = from.bytes.size() / (from.shape[0] * all);
                    for (std::size_t row = 0; row < from.shape[0]; ++row)
                        for (std::size_t head = shard.head_first; head < shard.head_first + shard.head_count; ++head)
                            for (std::size_t i = 0; i < per_head; ++i)
                                to.bytes.push_back(from.bytes[(row * all + head) * per_head + i]);
                }
            }
        }
    }
    return out;
}

std::vector<kv::State> split(const kv::State& state, std::uint32_t n) {
    std::vector<kv::State> shards(n);
    std::vector<std::unique_ptr<kv::Sink>> sinks;
    for (kv::State& shard : shards) sinks.push_back(std::make_unique<KeepingSink>(shard));
    const auto sink = kv::split_heads(std::move(sinks), kv::cuts_for_ranks(n), "shards");
    const Status done = kv::write_all(state, *sink);
    REQUIRE_MESSAGE(done.has_value(), done.error().message);
    return shards;
}

Result<kv::State> take(const std::vector<kv::State>& shards, const kv::Shard& target) {
    std::vector<std::unique_ptr<kv::Source>> sources;
    for (std::size_t i = 0; i < shards.size(); ++i) sources.push_back(source_of(shards[i], fmt::format("s{}", i)));
    HETERO_TRY(const auto source, kv::reshard(std::move(sources), target, "target"));
    return kv::read_all(*source);
}

// As ranks do: what each of n gets on its links from m, put together.
std::vector<kv::State> over_links(const std::vector<kv::State>& from, std::uint32_t n) {
    const HeadCounts counts = kv::head_counts(from.front().header.identity);
    const auto m = static_cast<std::uint32_t>(from.size());
    const auto links = kv::plan_reshard(counts, m, n);
    std::vector<kv::State> to;
    for (std::uint32_t rank = 0; rank < n; ++rank) {
        std::vector<kv::State> parts;
        for (const kv::ShardLink& link : links) {
            if (link.to != rank) continue;
            kv::Shard cut{m, link.from, link.heads.first, link.heads.count};
            if (m == 1) cut = kv::shard_of(counts, n, rank);
            auto sliced = kv::slice_heads(source_of(from[link.from], "link"), cut);
            REQUIRE_MESSAGE(sliced.has_value(), sliced.error().message);
            auto part = kv::read_all(**sliced);
            REQUIRE(part.has_value());
            parts.push_back(std::move(*part));
        }
        auto target = take(parts, kv::shard_of(counts, n, rank));
        REQUIRE_MESSAGE(target.has_value(), target.error().message);
        to.push_back(std::move(*target));
    }
    return to;
}

Plan random_plan(std::mt19937& random) {
    const auto upto = [&](std::uint32_t n) { return 1 + static_cast<std::uint32_t>(random() % n); };
    Plan plan;
    plan.n_layers = upto(3);
    plan.n_kv_heads = upto(6);
    plan.n_heads = plan.n_kv_heads * upto(3);
    plan.head_dim_k = 4 * upto(4);
    plan.head_dim_v = 4 * upto(4);
    plan.lengths.clear();
    for (std::uint32_t s = upto(2); s > 0; --s) plan.lengths.push_back(upto(9));
    const std::vector<kv::Scheme> schemes = {plain_scheme("f16"),
                                             plain_scheme("f32"),
                                             plain_scheme("bf16"),
                                             int8_scheme(quant::Axis::token, 3, false),
                                             int8_scheme(quant::Axis::channel, 2, true),
                                             spec_scheme("int4:token:g4"),
                                             spec_scheme("int8:head"),
                                             spec_scheme("had:int8:token"),
                                             spec_scheme("int8:token", 2, 3)};
    for (std::uint32_t layer = 0; layer < plan.n_layers; ++layer) {
        plan.k_of_layer.push_back(schemes[random() % schemes.size()]);
        plan.v_of_layer.push_back(schemes[random() % schemes.size()]);
        plan.shapes.push_back(random() % 3 == 0 ? kv::LayerShape{kv::LayerKind::swa, upto(6)} : kv::LayerShape{});
    }
    return plan;
}

}  // namespace

TEST_CASE("a rank holds the KV heads that its query heads read") {
    for (std::uint32_t n_kv_heads = 1; n_kv_heads <= 8; ++n_kv_heads) {
        for (std::uint32_t group = 1; group <= 4; ++group) {
            const HeadCounts counts{n_kv_heads * group, n_kv_heads};
            for (std::uint32_t size = 1; size <= counts.n_heads; ++size) {
                REQUIRE(kv::check_tp_size(counts, size).has_value());
                for (std::uint32_t rank = 0; rank < size; ++rank) {
                    CAPTURE(n_kv_heads);
                    CAPTURE(group);
                    CAPTURE(size);
                    CAPTURE(rank);
                    CHECK(as_set(kv::heads_of(counts, size, rank)) == heads_by_hand(counts, size, rank));
                }
            }
            const Status refused = kv::check_tp_size(counts, counts.n_heads + 1);
            REQUIRE(!refused.has_value());
            CHECK(refused.error().message.find(fmt::format("the model's {} attention heads", counts.n_heads)) !=
                  std::string::npos);
        }
    }
    // Replicated where there are more ranks than heads.
    for (std::uint32_t rank = 0; rank < 8; ++rank)
        CHECK(kv::shard_of({16, 2}, 8, rank) == kv::Shard{8, rank, rank / 4, 1});
    CHECK(!kv::check_tp_size({16, 2}, 0).has_value());
}

TEST_CASE("every rank gets each of its heads once, from a rank that holds it") {
    for (std::uint32_t n_kv_heads = 1; n_kv_heads <= 6; ++n_kv_heads) {
        for (std::uint32_t group = 1; group <= 3; ++group) {
            const HeadCounts counts{n_kv_heads * group, n_kv_heads};
            for (std::uint32_t m = 1; m <= counts.n_heads; ++m) {
                for (std::uint32_t n = 1; n <= counts.n_heads; ++n) {
                    CAPTURE(n_kv_heads);
                    CAPTURE(group);
                    CAPTURE(m);
                    CAPTURE(n);
                    const auto links = kv::plan_reshard(counts, m, n);
                    std::vector<std::multiset<std::uint32_t>> got(n);
                    std::set<std::pair<std::uint32_t, std::uint32_t>> ways;
                    for (const kv::ShardLink& link : links) {
                        REQUIRE(link.from < m);
                        REQUIRE(link.to < n);
                        REQUIRE(link.heads.count > 0);
                        CHECK(ways.insert({link.to, link.from}).second);  // one way between two ranks
                        const auto held = as_set(kv::heads_of(counts, m, link.from));
                        for (const std::uint32_t head : as_set(link.heads)) {
                            CHECK(held.count(head) == 1);
                            got[link.to].insert(head);
                        }
                    }
                    for (std::uint32_t rank = 0; rank < n; ++rank) {
                        const auto wanted = as_set(kv::heads_of(counts, n, rank));
                        CHECK(got[rank] == std::multiset<std::uint32_t>(wanted.begin(), wanted.end()));
                    }
                    CHECK(links.size() <= m + n - 1);
                    CHECK(links.front().from == 0);
                    CHECK(links.front().to == 0);
                    if (m == n) CHECK(std::all_of(links.begin(), links.end(), [](auto& l) { return l.from == l.to; }));
                }
            }
        }
    }
}

TEST_CASE("those who hold one head send by turns") {
    // 8 ranks hold 2 heads, 4 each; 4 others want one each.
    const auto links = kv::plan_reshard({8, 2}, 8, 4);
    REQUIRE(links.size() == 4);
    std::set<std::uint32_t> senders;
    for (const kv::ShardLink& link : links) senders.insert(link.from);
    CHECK(senders.size() == 4);
}

TEST_CASE("random states from m ranks to n, and back: bit for bit what indexing gives") {
    std::mt19937 random(7);
    for (int run = 0; run < 60; ++run) {
        const kv::State whole = make_state(random_plan(random));
        const HeadCounts counts = kv::head_counts(whole.header.identity);
        const std::uint32_t most = std::min(6U, counts.n_heads);
        const std::uint32_t m = 1 + static_cast<std::uint32_t>(random() % most),
                            n = 1 + static_cast<std::uint32_t>(random() % most);
        CAPTURE(run);
        CAPTURE(counts.n_heads);
        CAPTURE(counts.n_kv_heads);
        CAPTURE(m);
        CAPTURE(n);
        const auto from = split(whole, m);
        for (std::uint32_t rank = 0; rank < m; ++rank) {
            REQUIRE(kv::check_header(from[rank].header).has_value());
            CHECK(difference(shard_by_hand(whole, kv::shard_of(counts, m, rank)), from[rank]) == "");
        }
        const auto to = over_links(from, n);
        for (std::uint32_t rank = 0; rank < n; ++rank) {
            kv::State expected = shard_by_hand(whole, kv::shard_of(counts, n, rank));
            for (auto& sequence : expected.header.sequences) sequence.logits.clear();
            kv::State got = to[rank];
            for (auto& sequence : got.header.sequences) sequence.logits.clear();
            CHECK(difference(expected, got) == "");
            const auto direct = take(from, kv::shard_of(counts, n, rank));  // as from files
            REQUIRE_MESSAGE(direct.has_value(), direct.error().message);
            for (std::size_t s = 0; s < whole.layers.size(); ++s)
                CHECK(direct->layers[s].size() == expected.layers[s].size());
            kv::State compared = *direct;
            for (auto& sequence : compared.header.sequences) sequence.logits.clear();
            CHECK(difference(expected, compared) == "");
        }
        // Back, and together.
        const auto back = over_links(to, m);
        for (std::uint32_t rank = 0; rank < m; ++rank)
            for (std::size_t s = 0; s < whole.layers.size(); ++s)
                for (std::size_t l = 0; l < whole.layers[s].size(); ++l)
                    for (const PartId id : {PartId::k, PartId::v})
                        for (const auto array : kv::part_arrays)
                            CHECK((back[rank].layers[s][l].part(id).*array).bytes ==
                                  (from[rank].layers[s][l].part(id).*array).bytes);
        const auto together = take(to, {});
        REQUIRE_MESSAGE(together.has_value(), together.error().message);
        CHECK(difference(whole, *together) == "");
    }
}

TEST_CASE("a state whose heads share a scale is not cut") {
    Plan plan;
    plan.k = spec_scheme("int8:tensor");
    const kv::State whole = make_state(plan);
    std::vector<kv::State> shards(2);
    std::vector<std::unique_ptr<kv::Sink>> sinks;
    for (kv::State& shard : shards) sinks.push_back(std::make_unique<KeepingSink>(shard));
    const Status done = kv::write_all(whole, *kv::split_heads(std::move(sinks), kv::cuts_for_ranks(2), "shards"));
    REQUIRE(!done.has_value());
    CHECK(done.error().code == Errc::bad_input);
    CHECK(done.error().message.find("layer 0, K: a scale that all heads share") != std::string::npos);
}

TEST_CASE("one output that fails ends all of them, and none is committed") {
    const kv::State whole = make_state({});
    std::vector<kv::State> shards(2);
    auto first = std::make_unique<KeepingSink>(shards[0]), second = std::make_unique<KeepingSink>(shards[1], 1);
    KeepingSink &a = *first, &b = *second;
    std::vector<std::unique_ptr<kv::Sink>> sinks;
    sinks.push_back(std::move(first));
    sinks.push_back(std::move(second));
    const auto sink = kv::split_heads(std::move(sinks), kv::cuts_for_ranks(2), "shards");
    const Status done = kv::write_all(whole, *sink);
    REQUIRE(!done.has_value());
    sink->abort(done.error());
    CHECK(a.aborted == "no room");
    CHECK(b.aborted == "no room");
    CHECK_FALSE(a.committed);
    CHECK_FALSE(b.committed);
}

TEST_CASE("shards of files: only those with a wanted head are read") {
    const TempDir folder;
    Plan plan;
    plan.n_heads = plan.n_kv_heads = 6;
    const kv::State whole = make_state(plan);
    const auto shards = split(whole, 3);
    for (std::uint32_t rank = 0; rank < 3; ++rank) save(shards[rank], kv::shard_path(folder / "a.h5", rank, 3));
    // Damage in the numbers of the last shard.
    auto bytes = read_bytes(folder / "a.tp2of3.h5");
    const auto& values = shards[2].layers[0][0].k.values.bytes;
    const auto at = std::search(bytes.begin(), bytes.end(), values.begin(), values.end());
    REQUIRE(at != bytes.end());
    *at ^= std::byte{1};
    write_bytes(folder / "a.tp2of3.h5", bytes);
    const HeadCounts counts{6, 6};
    for (const std::uint32_t rank : {0U, 1U}) {
        auto files = kv::open_files(folder / "a.h5");
        REQUIRE_MESSAGE(files.has_value(), files.error().message);
        CHECK(files->sources.size() == 3);
        auto source = kv::read_shard(std::move(*files), kv::shard_of(counts, 2, rank));
        REQUIRE_MESSAGE(source.has_value(), source.error().message);
        const auto state = kv::read_all(**source);
        CHECK(state.has_value() == (rank == 0));
        if (state) {
            CHECK(difference(shard_by_hand(whole, kv::shard_of(counts, 2, 0)), *state) == "");
        } else {
            CHECK(state.error().message.find("a.tp2of3.h5: ") != std::string::npos);
        }
    }
}
