// Cutting heads out of states and putting shards together, in memory, images and files.
#include "kv/shards.h"

#include <algorithm>

#include "kinds.h"
#include "kv/convert.h"
#include "kv/shard_files.h"

using namespace hetero;
using namespace hetero::test;
using kv::PartId;
using quant::Axis;

namespace {

// Every head is held; more ranks than heads replicate them, and heads that do not divide are held twice.
kv::Shard shard_of(std::uint32_t n_heads, std::uint32_t tp_size, std::uint32_t tp_rank) {
    const std::uint32_t first = tp_rank * n_heads / tp_size;
    const std::uint32_t end = ((tp_rank + 1) * n_heads + tp_size - 1) / tp_size;
    return {tp_size, tp_rank, first, end - first};
}

std::unique_ptr<kv::Source> source_of(const kv::State& state, std::string name = "memory") {
    return kv::memory_source(std::make_shared<const kv::State>(state), std::move(name));
}

Result<kv::State> sliced(const kv::State& state, const kv::Shard& shard) {
    HETERO_TRY(const auto source, kv::slice_heads(source_of(state, "a.h5"), shard));
    return kv::read_all(*source);
}

Result<kv::State> merged(const std::vector<kv::State>& shards) {
    std::vector<std::unique_ptr<kv::Source>> sources;
    for (std::size_t i = 0; i < shards.size(); ++i) sources.push_back(source_of(shards[i], fmt::format("s{}", i)));
    HETERO_TRY(const auto source, kv::merge_shards(std::move(sources), "whole"));
    return kv::read_all(*source);
}

std::vector<kv::State> split(const kv::State& state, std::uint32_t tp_size) {
    std::vector<kv::State> shards;
    for (std::uint32_t rank = 0; rank < tp_size; ++rank) {
        auto shard = sliced(state, shard_of(state.header.identity.n_kv_heads, tp_size, rank));
        REQUIRE_MESSAGE(shard.has_value(), shard.error().message);
        shards.push_back(std::move(*shard));
    }
    return shards;
}

void save_shards(const kv::State& state, std::uint32_t tp_size, const std::string& path) {
    const auto shards = split(state, tp_size);
    for (std::uint32_t rank = 0; rank < tp_size; ++rank) save(shards[rank], kv::shard_path(path, rank, tp_size));
}

Result<kv::State> open_all(const std::string& path) {
    HETERO_TRY(const auto source, kv::open_state(path));
    return kv::read_all(*source);
}

void check_refused(const Result<kv::State>& result, std::initializer_list<std::string_view> parts) {
    REQUIRE(!result.has_value());
    CHECK(result.error().code == Errc::bad_input);
    for (const auto part : parts)
        CHECK_MESSAGE(result.error().message.find(part) != std::string::npos, part,
                      " is not in: ", result.error().message);
    CHECK(result.error().message.find('\n') == std::string::npos);
}

// What a slice decodes to is what the whole decodes to, at these heads.
void check_heads(const kv::State& whole, const kv::State& slice) {
    const std::uint32_t first = slice.header.shard.head_first, count = slice.header.stored_heads();
    const std::uint32_t all = whole.header.identity.n_kv_heads;
    std::size_t wrong = 0, values = 0;
    for (std::size_t s = 0; s < whole.layers.size(); ++s) {
        for (std::size_t l = 0; l < whole.layers[s].size(); ++l) {
            for (const PartId id : {PartId::k, PartId::v}) {
                const std::uint64_t n_tokens = whole.header.stored_tokens(s, l);
                const std::uint32_t dim = whole.header.identity.head_dim(id);
                const auto x = kv::decode_part(whole.header, whole.layers[s][l].part(id), n_tokens, id);
                const auto y = kv::decode_part(slice.header, slice.layers[s][l].part(id), n_tokens, id);
                REQUIRE(x.has_value());
                REQUIRE_MESSAGE(y.has_value(), y.error().message);
                REQUIRE(y->size() == n_tokens * count * dim);
                for (std::uint64_t t = 0; t < n_tokens; ++t)
                    for (std::uint32_t h = 0; h < count; ++h)
                        for (std::uint32_t d = 0; d < dim; ++d, ++values)
                            if ((*y)[(t * count + h) * dim + d] != (*x)[(t * all + first + h) * dim + d]) ++wrong;
            }
        }
    }
    CHECK(values > 0);
    CHECK(wrong == 0);
}

Plan three_heads() {
    Plan plan = kind_plan("swa and gqa");
    plan.n_heads = 6;
    plan.n_kv_heads = 3;
    return plan;
}

}  // namespace

TEST_CASE("1 to 4 shards of 1 to 8 heads: each holds its heads, and together they are the whole bit for bit") {
    const std::vector<std::pair<kv::Scheme, kv::Scheme>> schemes = {
        {plain_scheme("f16"), plain_scheme("f32")},
        {int8_scheme(Axis::token, 5, false), int8_scheme(Axis::channel, 3, true)}};
    for (std::uint32_t heads = 1; heads <= 8; ++heads) {
        for (const auto& [k, v] : schemes) {
            Plan plan = kind_plan("swa and gqa");
            plan.n_heads = 2 * heads;
            plan.n_kv_heads = heads;
            plan.k = k;
            plan.v = v;
            const kv::State whole = make_state(plan);
            for (std::uint32_t tp_size = 1; tp_size <= 4; ++tp_size) {
                CAPTURE(heads);
                CAPTURE(tp_size);
                std::vector<kv::State> shards = split(whole, tp_size);
                for (kv::State& shard : shards) {
                    REQUIRE(kv::check_header(shard.header).has_value());
                    check_heads(whole, shard);
                    auto carried = load_image(image_of(shard));  // as a rank of its own would write it
                    REQUIRE_MESSAGE(carried.has_value(), carried.error().message);
                    CHECK(difference(shard, *carried) == "");
                    shard = std::move(*carried);
                }
                std::rotate(shards.begin(), shards.begin() + tp_size / 2, shards.end());  // in any order
                const auto back = merged(shards);
                REQUIRE_MESSAGE(back.has_value(), back.error().message);
                CHECK(difference(whole, *back) == "");
                CHECK(image_of(whole) == image_of(*back));
            }
        }
    }
}

TEST_CASE("layers without heads are whole in every shard") {
    Plan plan = kind_plan("mla and swa");
    plan.k = int8_scheme(Axis::channel, 2, false);
    const kv::State whole = make_state(plan);
    std::vector<kv::State> shards = split(whole, 4);
    for (const kv::State& shard : shards) CHECK(shard.layers[0][0].k.values.bytes == whole.layers[0][0].k.values.bytes);
    const auto back = merged(shards);
    REQUIRE_MESSAGE(back.has_value(), back.error().message);
    CHECK(difference(whole, *back) == "");
    shards[2].layers[1][0].v.values.bytes[9] ^= std::byte{1};
    check_refused(merged(shards),
                  {"s0 (rank 0) and s2 (rank 2) hold different numbers: sequence prompt 1, layer 0, RoPE key"});
}

TEST_CASE("a slice of a slice, and heads that are not there") {
    Plan plan = kind_plan("swa and gqa");
    plan.n_heads = plan.n_kv_heads = 8;
    const kv::State whole = make_state(plan);
    const auto half = sliced(whole, {2, 1, 4, 4});
    REQUIRE_MESSAGE(half.has_value(), half.error().message);
    const auto quarter = sliced(*half, {4, 3, 6, 2}), direct = sliced(whole, {4, 3, 6, 2});
    REQUIRE_MESSAGE(quarter.has_value(), quarter.error().message);
    REQUIRE(direct.has_value());
    CHECK(difference(*direct, *quarter) == "");
    check_refused(sliced(*half, {4, 1, 2, 2}), {"a.h5: has heads 4 to 7, heads 2 to 3 are wanted"});
    check_refused(sliced(whole, {4, 1, 7, 2}), {"a.h5: head_count is 2; 1 to 1"});
    check_refused(sliced(*half, {}), {"a.h5: has heads 4 to 7, heads 0 to 7 are wanted"});
    CHECK(kv::check_whole(whole.header, "a.h5").has_value());
    const Status shard = kv::check_whole(half->header, "a.h5");
    REQUIRE(!shard.has_value());
    CHECK(shard.error().message.find("a.h5: is shard 1 of 2, with heads 4 to 7 of 8") != std::string::npos);
}

TEST_CASE("shards of two runs are refused, equal as they are otherwise") {
    auto shards = split(make_state({}), 2);
    REQUIRE(merged(shards));
    for (kv::State& shard : shards) shard.header.provenance.push_back({"hetero-prefill", "1", "prefill shards=01"});
    REQUIRE(merged(shards));
    shards[1].header.provenance.back().what = "prefill shards=02";
    check_refused(merged(shards), {"s0 (rank 0) and s1 (rank 1) are not shards of one state", "different runs",
                                   "prefill shards=01", "prefill shards=02"});
    shards[1].header.provenance.pop_back();
    check_refused(merged(shards), {"different runs"});
}

TEST_CASE("shards that do not belong together are refused by ranks and field") {
    const kv::State whole = make_state(three_heads());
    const auto good = split(whole, 2);  // heads 0 to 1 and 1 to 2
    REQUIRE(merged(good).has_value());
    const auto changed = [&](auto change) {
        auto shards = good;
        change(shards[1]);
        return merged(shards);
    };
    check_refused(changed([](auto& s) { s.layers[0][2].v.values.bytes[0] ^= std::byte{1}; }),
                  {"s0 (rank 0) and s1 (rank 1) hold different numbers: sequence prompt 0, layer 2, V, head 1"});
    CHECK(changed([](auto& s) { s.layers[0][2].v.values.bytes[2 * 6] ^= std::byte{1}; }).has_value());  // head 2
    check_refused(
        changed([](auto& s) { s.header.identity.rope_theta = 7; }),
        {"s0 (rank 0) and s1 (rank 1) are not shards of one state", "rope_theta: the first has 10000, the other 7"});
    check_refused(changed([](auto& s) { s.header.identity.weights_digest = {}; }), {"weights_digest"});
    check_refused(changed([](auto& s) { s.header.sequences[1].tokens[2] = 9; }), {"tokens[2] of sequence 1"});
    check_refused(changed([](auto& s) { s.header.sequences[1].id = "x"; }), {"id of sequence 1"});
    check_refused(changed([](auto& s) { s.header.sequences[0].pending_token = 9; }), {"pending_token of sequence 0"});
    check_refused(changed([](auto& s) { s.header.sequences.pop_back(); }), {"number of sequences", "2", "1"});
    check_refused(changed([](auto& s) { s.header.sequences[0].logits[3] = 0; }),
                  {"the logits of sequence prompt 0 differ"});
    check_refused(changed([](auto& s) { s.header.v_schemes[2] = plain_scheme("bf16"); }),
                  {"scheme of layer 2, V", "f16", "bf16"});
    check_refused(changed([](auto& s) {
                      s.header.layer_shapes[2] = {kv::LayerKind::swa, 4};
                  }),
                  {"layer 2", "gqa", "swa"});
    check_refused(changed([](auto& s) { s.header.shard = {3, 1, 1, 2}; }), {"tp_size", "2", "3"});
    check_refused(changed([](auto& s) { s.header.shard.tp_rank = 0; }), {"s0 and s1 are both shard 0 of 2"});
    check_refused(merged({good[1]}), {"whole: no shard has head 0 of 3: s0 (rank 1) has heads 1 to 2"});
    // Only one rank needs to store the logits.
    auto shards = good;
    for (auto& sequence : shards[0].header.sequences) sequence.logits.clear();
    const auto back = merged(shards);
    REQUIRE_MESSAGE(back.has_value(), back.error().message);
    CHECK(difference(whole, *back) == "");
}

TEST_CASE("names of shard files") {
    CHECK(kv::shard_path("state.h5", 0, 2) == "state.tp0of2.h5");
    CHECK(kv::shard_path("a.b/state", 3, 16) == "a.b/state.tp3of16");
    CHECK(kv::shard_path("a/.hidden", 1, 2) == "a/.hidden.tp1of2");
    for (const char* path : {"state.h5", "a.b/state", "x/state.v2.h5", "a/.hidden"}) {
        CAPTURE(path);
        const auto name = kv::parse_shard_path(kv::shard_path(path, 1, 4));
        REQUIRE(name);
        CHECK(name->whole == path);
        CHECK(name->tp_rank == 1);
        CHECK(name->tp_size == 4);
        CHECK(!kv::parse_shard_path(path));
    }
    for (const char* path :
         {"a.tp2of2.h5", "a.tp0of1.h5", "a.tp00of2.h5", "a.tp0of02.h5", "a.tp0of2x.h5", "a.tp-1of2.h5", "a.tpof2.h5",
          "a.tp0of99999999999.h5", "a.tp0of2.b.h5", "atp0of2.h5", ".tp0of2.h5/a"})
        CHECK_MESSAGE(!kv::parse_shard_path(path), path);
}

TEST_CASE("a set of shard files opens by the name of the whole, and by that of any shard") {
    const TempDir folder;
    const kv::State whole = make_state(three_heads());
    save_shards(whole, 4, folder / "a.h5");
    for (const char* name : {"a.h5", "a.tp0of4.h5", "a.tp3of4.h5"}) {
        CAPTURE(name);
        const auto back = open_all(folder / name);
        REQUIRE_MESSAGE(back.has_value(), back.error().message);
        CHECK(difference(whole, *back) == "");
    }
    CHECK(kv::state_files(folder / "a.h5")->size() == 4);
    CHECK(kv::state_files(folder / "a.tp2of4.h5")->size() == 4);
    check_refused(open_all(folder / "b.h5"), {"b.h5", "No such file"});
    CHECK(kv::state_files(folder / "b.h5").error().message.find("b.h5: cannot open: No such file") !=
          std::string::npos);

    // A file of the whole's name is the state.
    Plan other = three_heads();
    other.lengths = {2};
    save(make_state(other), folder / "a.h5");
    const auto back = open_all(folder / "a.h5");
    REQUIRE_MESSAGE(back.has_value(), back.error().message);
    CHECK(back->header.sequences.size() == 1);
}

TEST_CASE("sets of shard files that are not whole are refused by name") {
    const TempDir folder;
    Plan plan = three_heads();
    save_shards(make_state(plan), 2, folder / "a.h5");
    SUBCASE("missing") {
        std::filesystem::remove(folder / "a.tp1of2.h5");
        for (const char* name : {"a.h5", "a.tp0of2.h5"})
            check_refused(open_all(folder / name), {"a.tp1of2.h5: is missing: shard 1 of the 2"});
        check_refused(open_all(folder / "a.tp1of2.h5"), {"a.tp1of2.h5", "No such file"});
    }
    SUBCASE("misnamed") {
        std::filesystem::copy(folder / "a.tp0of2.h5", folder / "b.tp0of2.h5");
        std::filesystem::copy(folder / "a.tp0of2.h5", folder / "b.tp1of2.h5");
        std::filesystem::copy(folder / "a.tp0of2.h5", folder / "b.h5");
        check_refused(open_all(folder / "b.tp1of2.h5"),
                      {"b.tp1of2.h5: holds shard 0 of 2; its name stands for shard 1"});
        check_refused(open_all(folder / "b.tp0of2.h5"),
                      {"b.tp1of2.h5: holds shard 0 of 2; its name stands for shard 1"});
        check_refused(open_all(folder / "b.h5"), {"b.h5: is shard 0 of 2", "b.tp0of2.h5"});
    }
    SUBCASE("foreign") {
        plan.lengths = {11, 2};
        save_shards(make_state(plan), 2, folder / "b.h5");
        std::filesystem::copy(folder / "b.tp1of2.h5", folder / "a.tp1of2.h5",
                              std::filesystem::copy_options::overwrite_existing);
        check_refused(open_all(folder / "a.h5"), {"a.tp0of2.h5 (rank 0)", "a.tp1of2.h5 (rank 1)",
                                                  "number of tokens of sequence 1: the first has 3, the other 2"});
    }
    SUBCASE("a whole state in the place of a shard") {
        save(make_state(plan), folder / "a.tp1of2.h5", io::Overwrite::replace);
        check_refused(open_all(folder / "a.h5"), {"a.tp1of2.h5: holds shard 0 of 1; its name stands for shard 1 of 2"});
        CHECK(open_all(folder / "a.tp1of2.h5").has_value());  // by its own name it is what it is
    }
    SUBCASE("two sets") {
        save_shards(make_state(plan), 3, folder / "a.h5");
        check_refused(open_all(folder / "a.h5"), {"shards of 2 ranks (", "and of 3 (", "name one of them"});
        CHECK(open_all(folder / "a.tp1of3.h5").has_value());
    }
    SUBCASE("damaged") {
        auto bytes = read_bytes(folder / "a.tp1of2.h5");
        const auto second = split(make_state(plan), 2)[1];
        const auto& values = second.layers[0][1].k.values.bytes;
        const auto at = std::search(bytes.begin(), bytes.end(), values.begin(), values.end());
        REQUIRE(at != bytes.end());
        *at ^= std::byte{1};
        write_bytes(folder / "a.tp1of2.h5", bytes);
        check_refused(open_all(folder / "a.h5"), {"a.tp1of2.h5: ", "layers/001/k is damaged", "CRC-32C"});
    }
}
