// Checksums that go with a layer from whoever has compared its bytes to whoever needs them next.
#include "kv/shards.h"
#include "states.h"

using namespace hetero;
using namespace hetero::test;

namespace {

Plan plan_of_chunks() {
    Plan plan;
    plan.lengths = {11};
    plan.tokens_per_chunk = 4;
    return plan;
}

// A state whose first layer says of its first chunk of K, in chunks of so many tokens, that its checksum is another.
Result<kv::State> written_with_others(std::uint32_t tokens_per_chunk) {
    const kv::State state = make_state(plan_of_chunks());
    const TempDir folder;
    const auto sink = kv::create_file(folder / "a.h5", io::Overwrite::refuse);
    REQUIRE(sink);
    REQUIRE((*sink)->begin(state.header));
    for (std::size_t i = 0; i < state.layers[0].size(); ++i) {
        kv::Layer layer = state.layers[0][i];
        kv::LayerChecksums checksums = kv::checksum_layer(state.header, layer);
        if (i == 0) checksums.k.values[0] ^= 1;
        layer.verified = std::make_shared<kv::VerifiedPieces>(kv::VerifiedPieces{tokens_per_chunk, checksums});
        REQUIRE((*sink)->write_shared(std::make_shared<kv::Layer>(std::move(layer))));
    }
    REQUIRE((*sink)->commit());
    return load(folder / "a.h5");
}

}  // namespace

TEST_CASE("a file keeps the checksums that its layers come with, where they are of its chunks") {
    const auto same = written_with_others(4);
    REQUIRE_FALSE(same);
    CHECK(same.error().message.find("layer 0, chunk 0 (tokens 0 to 3): CRC-32C expected") != std::string::npos);
    CHECK(written_with_others(8));
}

TEST_CASE("what was read from a file has the checksums that it was compared with") {
    const kv::State state = make_state(plan_of_chunks());
    const TempDir folder;
    save(state, folder / "a.h5");
    const auto source = kv::open_file(folder / "a.h5");
    REQUIRE(source);
    const auto layer = (*source)->read_layer();
    REQUIRE(layer);
    const kv::LayerChecksums* verified = kv::verified_checksums((*source)->header(), *layer);
    REQUIRE(verified != nullptr);
    CHECK(*verified == kv::checksum_layer(state.header, state.layers[0][0]));
    kv::Header other = (*source)->header();
    other.tokens_per_chunk = 8;
    CHECK(kv::verified_checksums(other, *layer) == nullptr);
    const auto unverified = kv::open_file(folder / "a.h5", kv::Verify::structure_only);
    REQUIRE(unverified);
    kv::Layer used = *layer;  // read into, it has none
    REQUIRE((*unverified)->read_into(used));
    CHECK(used.verified == nullptr);
}

TEST_CASE("what may be changed in memory comes without checksums, and so do heads that are cut out") {
    Plan plan = plan_of_chunks();
    const kv::State state = make_state(plan);
    const TempDir folder;
    save(state, folder / "a.h5");
    const auto whole = load(folder / "a.h5");
    REQUIRE(whole);
    for (const kv::Layer& layer : whole->layers[0]) CHECK(layer.verified == nullptr);
    auto source = kv::open_file(folder / "a.h5");
    REQUIRE(source);
    const std::uint32_t heads = state.header.identity.n_kv_heads;
    REQUIRE(heads > 1);
    const auto slice = kv::slice_heads(std::move(*source), {heads, 0, 0, 1});
    REQUIRE_MESSAGE(slice, slice.error().message);
    const auto cut = (*slice)->read_layer();
    REQUIRE(cut);
    CHECK(cut->verified == nullptr);
}
