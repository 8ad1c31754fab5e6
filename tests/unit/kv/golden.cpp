// Files of testdata/kv: every version of the format must stay readable, whoever wrote it.
#include "support/golden.h"

#include <cstdlib>

#include "kv/shard_files.h"
#include "states.h"

using namespace hetero;
using hetero::test::testdata;

namespace {

// What v1.h5 holds. HETERO_KV_GOLDEN=FOLDER makes the test write it there instead of reading it.
kv::State version_1() {
    test::Plan plan;
    plan.lengths = {5, 3};
    plan.k = test::int8_scheme(quant::Axis::channel, 2, false);
    plan.v = test::plain_scheme("bf16");
    plan.tokens_per_chunk = 4;
    return test::make_state(plan);
}

// The numbers that make-kv-testdata.py puts into its files, by layer, token, head and dim of the whole state.
void check_numbers(const kv::State& state) {
    for (std::uint32_t layer = 0; layer < state.header.identity.n_layers; ++layer) {
        for (const auto id : {kv::PartId::k, kv::PartId::v}) {
            const kv::Part& part = state.layers[0][layer].part(id);
            const std::uint32_t heads = state.header.stored_heads(), first_head = state.header.shard.head_first;
            const auto n_tokens = static_cast<std::uint32_t>(state.header.stored_tokens(0, layer));
            const auto first_token = static_cast<std::uint32_t>(state.header.first_token(0, layer));
            std::vector<float> values(n_tokens * heads * 6);
            const auto decoded = quant::find_codec(part.scheme.codec)
                                     ->decode(part.scheme.params, {n_tokens, heads, 6}, part.values.bytes,
                                              part.scale.bytes, part.zero.bytes, values);
            REQUIRE_MESSAGE(decoded.has_value(), decoded.error().message);
            std::size_t wrong = 0;
            for (std::uint32_t token = 0; token < n_tokens; ++token)
                for (std::uint32_t head = 0; head < heads; ++head)
                    for (std::uint32_t dim = 0; dim < 6; ++dim) {
                        const auto place =
                            (layer * 97 + (first_token + token) * 31 + (first_head + head) * 17 + dim * 5) % 64;
                        if (values[(token * heads + head) * 6 + dim] != static_cast<float>(place) / 16 - 2) ++wrong;
                    }
            CHECK(wrong == 0);
        }
    }
}

}  // namespace

TEST_CASE("a file of version 1.0 is read as it was meant") {
    if (const char* folder = std::getenv("HETERO_KV_GOLDEN")) test::save(version_1(), std::string(folder) + "/v1.h5");
    const auto back = test::load(testdata("kv/v1.h5"));
    REQUIRE_MESSAGE(back.has_value(), back.error().message);
    CHECK(test::difference(version_1(), *back) == "");
}

TEST_CASE("a file that h5py wrote by the man page alone is read as it was meant") {
    const auto back = test::load(testdata("kv/v1-h5py.h5"));
    REQUIRE_MESSAGE(back.has_value(), back.error().message);
    const kv::Header& header = back->header;
    CHECK(header.identity.model_id == "h5py \u00b5");
    CHECK(header.identity.rope_theta == 10000.5);
    REQUIRE(header.sequences.size() == 1);
    CHECK(header.sequences[0].id == "caf\u00e9");
    CHECK(header.sequences[0].tokens == std::vector<std::int32_t>{1, 2, 3, 4, 5});
    CHECK(header.sequences[0].pending_token == 7);
    CHECK(header.sequences[0].special_parsed);
    CHECK(header.sequences[0].logits.empty());
    REQUIRE(header.provenance.size() == 1);
    CHECK(header.provenance[0].what == "by h5py");
    CHECK(header.layer_shapes.empty());
    check_numbers(*back);
}

TEST_CASE("files of version 1.1 that h5py wrote by the man page alone: windows and latents") {
    for (const auto& [name, shapes] : std::vector<std::pair<std::string, std::vector<kv::LayerShape>>>{
             {"v1.1-h5py-swa.h5", {{kv::LayerKind::swa, 3}, {}, {kv::LayerKind::swa, 64}}},
             {"v1.1-h5py-mla.h5", {{kv::LayerKind::mla, 0}, {kv::LayerKind::swa, 2}}}}) {
        const auto back = test::load(testdata("kv/" + name));
        REQUIRE_MESSAGE(back.has_value(), back.error().message);
        CHECK(back->header.layer_shapes == shapes);
        CHECK(back->header.identity.n_kv_heads == (name == "v1.1-h5py-mla.h5" ? 1 : 2));
        check_numbers(*back);
    }
}

TEST_CASE("shards of version 1.1 that h5py wrote, one by one and together") {
    for (const std::uint32_t rank : {0U, 1U}) {
        const auto back = test::load(testdata(fmt::format("kv/v1.1-h5py.tp{}of2.h5", rank)));
        REQUIRE_MESSAGE(back.has_value(), back.error().message);
        CHECK(back->header.shard == kv::Shard{2, rank, rank, 1});
        check_numbers(*back);
    }
    const auto source = kv::open_state(testdata("kv/v1.1-h5py.h5"));
    REQUIRE_MESSAGE(source.has_value(), source.error().message);
    const auto whole = kv::read_all(**source);
    REQUIRE_MESSAGE(whole.has_value(), whole.error().message);
    CHECK(!whole->header.is_shard());
    CHECK(whole->header.layer_shapes == std::vector<kv::LayerShape>{{}, {kv::LayerKind::swa, 4}});
    check_numbers(*whole);
}

TEST_CASE("damaged files of version 1.0 are refused, each for its reason") {
    const auto refused = [](const std::string& name, std::initializer_list<std::string_view> parts) {
        const auto back = test::load(testdata("kv/" + name));
        REQUIRE_MESSAGE(!back.has_value(), name);
        CHECK(back.error().code == Errc::bad_input);
        for (const auto part : parts)
            CHECK_MESSAGE(back.error().message.find(part) != std::string::npos, part,
                          " is not in: ", back.error().message);
    };
    refused("v1-h5py-flipped.h5", {"/sequences/0000/layers/001/v", "chunk 1 (tokens 2 to 3)", "CRC-32C"});
    refused("v1-h5py-truncated.h5", {"truncated: 4096 bytes"});
    refused("v1-h5py-partial.h5", {"not complete", "partial"});
    refused("v1-h5py-major2.h5", {"hetero-kv 2.0", "newer hetero"});
    refused("foreign.h5", {"foreign.h5"});
}
