// What a codec takes, measured on the first layer.
#include "kv/codec_cost.h"

#include "unit/kv/states.h"

using namespace hetero;
using namespace hetero::test;

TEST_CASE("bytes are those of the layer in both forms, and both ways take time") {
    Plan plan;
    plan.n_layers = 3;
    plan.n_heads = plan.n_kv_heads = 4;
    plan.head_dim_k = plan.head_dim_v = 32;
    plan.lengths = {700, 5};
    plan.shapes = {{kv::LayerKind::swa, 512}, {}, {}};  // only the first layer is looked at
    const kv::State state = make_state(plan);
    const kv::Scheme k = spec_scheme("wf4:channel:g64", 4), v = spec_scheme("had:int8:token", 4);
    const auto cost = kv::measure_codec_cost(state.header, state.layers[0][0], k, v, 1);
    REQUIRE_MESSAGE(cost, cost.error().message);
    CHECK(cost->bytes_in == 512 * 4 * 32 * 2 * 2);
    CHECK(cost->bytes_out == kv::part_bytes(state.header, k, 512, kv::PartId::k) +
                                 kv::part_bytes(state.header, v, 512, kv::PartId::v));
    CHECK(cost->encode_s > 0);
    CHECK(cost->decode_s > 0);
}

TEST_CASE("a codec that does not fit the heads is refused") {
    const kv::State state = make_state(Plan{});
    CHECK_FALSE(kv::measure_codec_cost(state.header, state.layers[0][0], plain_scheme("compat:q8_0"),
                                       plain_scheme("f16"), 1));
}
