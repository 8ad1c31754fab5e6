#include "transport/layer_pool.h"

#include "synthetic_state.h"

using namespace hetero;
using namespace hetero::test;
using transport::LayerPool;

TEST_CASE("a layer that was given back is taken again where its shape fits") {
    const kv::Header header = synthetic_header({}, 1);
    StateShape longer;
    longer.tokens = {14};
    const kv::Header other = synthetic_header(longer, 1);
    LayerPool pool(1);
    auto first = pool.take(header, 0);
    REQUIRE(first);
    const std::byte* memory = (*first)->k.values.bytes.data();
    pool.give(std::move(**first));
    pool.give(kv::Layer{});  // nothing

    auto fresh = pool.take(other, 0);
    REQUIRE(fresh);
    CHECK(kv::check_layer(other, 0, 0, **fresh));
    pool.give(std::move(**fresh));  // one too many

    auto again = pool.take(header, 1);
    REQUIRE(again);
    CHECK((*again)->k.values.bytes.data() == memory);
    CHECK(kv::check_layer(header, 0, 1, **again));
    auto empty = pool.take(header, 2);
    REQUIRE(empty);
    CHECK((*empty)->k.values.bytes.data() != memory);
}
