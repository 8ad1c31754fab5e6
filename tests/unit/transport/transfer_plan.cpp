#include "transport/transfer_plan.h"

#include <doctest/doctest.h>

#include "synthetic_state.h"
#include "transfer.h"

using namespace hetero;
using namespace hetero::test;

TEST_CASE("the plan is what the transfer then does") {
    StateShape int8;
    int8.k_codec = "int8";
    for (const StateShape& shape : {StateShape{}, mixed_shape(), int8}) {
        const auto state = synthetic_state(shape, 3);
        REQUIRE_MESSAGE(state, state.error().message);
        const auto plan = plan_transfer(state->header);
        REQUIRE_MESSAGE(plan, plan.error().message);
        std::uint64_t bytes = 0, chunks = 0;
        for (std::size_t l = 0; l < shape.layers; ++l) {
            std::uint64_t k = 0, v = 0;
            for (const auto& sequence : state->layers)
                for (const Array array : {Array::values, Array::scale, Array::zero, Array::sink, Array::tail}) {
                    k += array_of(sequence[l].k, array).bytes.size();
                    v += array_of(sequence[l].v, array).bytes.size();
                }
            CHECK(plan->layers[l].k_bytes == k);
            CHECK(plan->layers[l].v_bytes == v);
            bytes += k + v;
            chunks += plan->layers[l].chunks;
        }
        CHECK(bytes == state->header.payload_bytes());
        CHECK(plan->protocol_version == protocol_version_of(state->header));
        Transfer transfer(*state, 1);
        transfer.run();
        REQUIRE(transfer.identical());
        // HELLO, OFFER, COMMIT, and acknowledgements besides: without them the chunks.
        CHECK(transfer.sender().link().counters().bytes_sent >=
              bytes + chunks * frame_header_bytes + plan->offer_bytes);
        CHECK(transfer.receiver().link().counters().frames_received >= chunks + 3);
        CHECK(plan->largest_chunk_bytes * chunks >= bytes);
    }
}

TEST_CASE("a header without a chunk length is planned with the one that would be chosen") {
    kv::Header header = synthetic_header({}, 1);
    header.tokens_per_chunk = 0;
    const auto plan = plan_transfer(header);
    REQUIRE_MESSAGE(plan, plan.error().message);
    CHECK(plan->tokens_per_chunk == kv::choose_tokens_per_chunk(header));
    CHECK(plan->tokens_per_chunk > 0);
}

TEST_CASE("a header that cannot be sent has no plan") {
    kv::Header header = synthetic_header({}, 1);
    header.identity.n_kv_heads = 0;
    const auto plan = plan_transfer(header);
    REQUIRE_FALSE(plan);
    CHECK(plan.error().code == Errc::bad_input);
}
