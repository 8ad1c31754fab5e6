// Files of testdata/kv: every version of the format must stay readable, whoever wrote it.
#include "support/golden.h"

#include <cstdlib>

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
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
        for (const auto id : {kv::PartId::k, kv::PartId::v}) {
            const kv::Part& part = back->layers[0][layer].part(id);
            std::vector<float> values(5 * 2 * 6);
            const auto decoded = quant::find_codec(part.scheme.codec)
                                     ->decode(part.scheme.params, {5, 2, 6}, part.values.bytes, part.scale.bytes,
                                              part.zero.bytes, values);
            REQUIRE_MESSAGE(decoded.has_value(), decoded.error().message);
            std::size_t wrong = 0;
            for (std::uint32_t token = 0; token < 5; ++token)
                for (std::uint32_t head = 0; head < 2; ++head)
                    for (std::uint32_t dim = 0; dim < 6; ++dim) {
                        const auto place = (layer * 97 + token * 31 + head * 17 + dim * 5) % 64;
                        if (values[(token * 2 + head) * 6 + dim] != static_cast<float>(place) / 16 - 2) ++wrong;
                    }
            CHECK(wrong == 0);
        }
    }
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
