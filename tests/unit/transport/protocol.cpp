// How a transfer goes and ends over a channel in order.
#include "transfer.h"

using namespace hetero;
using namespace hetero::test;

TEST_CASE("a clean channel: the state arrives, and only after COMMIT_ACK is it sent") {
    const kv::State state = make_state();
    for (const bool tight : {false, true}) {
        Transfer transfer(state, 1, tight ? narrow() : ReceiverOptions{});
        transfer.run();
        CHECK(transfer.sender().committed());
        CHECK(transfer.receiver().confirmed());
        CHECK(transfer.identical());
        CHECK(transfer.receiver().header().sequences[1].tokens == state.header.sequences[1].tokens);
        CHECK(transfer.sender().link().counters().resent == 0);
        CHECK(transfer.receiver().link().counters().damaged == 0);
    }
}

TEST_CASE("a shard with layers of every kind arrives as it was sent") {
    const auto state = synthetic_state(mixed_shape(), 4);
    REQUIRE_MESSAGE(state, state.error().message);
    for (const bool tight : {false, true}) {
        Transfer transfer(*state, 1, tight ? narrow() : ReceiverOptions{});
        transfer.run();
        CHECK(transfer.sender().committed());
        CHECK(transfer.receiver().confirmed());
        CHECK(transfer.identical());
        CHECK(transfer.receiver().header().layer_shapes == state->header.layer_shapes);
        CHECK(transfer.receiver().header().shard == state->header.shard);
        CHECK(transfer.received()[0].k.values.shape == std::vector<std::uint64_t>{6, 1, 8});
    }
}

TEST_CASE("a peer that computes for minutes is waited for") {
    const kv::State state = make_state();
    SUBCASE("before the first byte") {
        Transfer transfer(state, 1);
        transfer.sender_starts_at_s = 300;
        transfer.run(400);
        CHECK(transfer.identical());
    }
    SUBCASE("before it begins to read") {
        Transfer transfer(state, 1);
        transfer.receiver_opens_at_s = 300;
        transfer.run(400);
        CHECK(transfer.identical());
    }
    SUBCASE("between layers") {
        Transfer transfer(state, 1, narrow());
        transfer.receiver_pause_s = 60;
        transfer.run(1000);
        CHECK(transfer.identical());
    }
}

TEST_CASE("a sender that gives up, and one that leaves without sending, end the receiver at once") {
    const kv::State state = make_state();
    SUBCASE("before anything was sent") {
        Transfer transfer(state, 1);
        transfer.sender_starts_at_s = 1000;
        for (int i = 0; i < 100; ++i) transfer.tick();
        transfer.sender().link().give_up({Errc::bad_input, "a.h5: truncated"});
        for (int i = 0; i < 3; ++i) transfer.tick();
        REQUIRE(transfer.receiver().error());
        CHECK(transfer.receiver().error()->code == Errc::peer);
        CHECK(transfer.receiver().error()->message == "rank 0 gave up: a.h5: truncated");
    }
    SUBCASE("an orderly end without a state") {
        Transfer transfer(state, 1);
        transfer.sender_starts_at_s = 1000;
        for (int i = 0; i < 100; ++i) transfer.tick();
        transfer.sender().link().say_bye();
        for (int i = 0; i < 3; ++i) transfer.tick();
        REQUIRE(transfer.receiver().error());
        CHECK(transfer.receiver().error()->message == "rank 0 ended without sending a state");
    }
    SUBCASE("the sink is dropped midway") {
        Transfer transfer(state, 1, narrow());
        transfer.receiver_pause_s = 5;
        for (int i = 0; i < 100; ++i) transfer.tick();
        REQUIRE(transfer.sender().accepted());
        transfer.sender().abandon();
        for (int i = 0; i < 200; ++i) transfer.tick();
        CHECK(transfer.receiver().error());
        CHECK_FALSE(transfer.receiver().confirmed());
    }
    SUBCASE("the receiver gives up") {
        Transfer transfer(state, 1, narrow());
        transfer.receiver_pause_s = 5;
        for (int i = 0; i < 100; ++i) transfer.tick();
        transfer.receiver().link().give_up({Errc::resource, "b.h5: No space left on device"});
        for (int i = 0; i < 3; ++i) transfer.tick();
        REQUIRE(transfer.sender().error());
        CHECK(transfer.sender().error()->message == "rank 1 gave up: b.h5: No space left on device");
    }
}

TEST_CASE("a state of another model is rejected, with the field and both values, on both sides") {
    const kv::State state = make_state();
    ReceiverOptions options;
    options.expected = state.header.identity;
    options.expected->rope_theta = 100000;
    Transfer transfer(state, 1, options);
    transfer.run();
    for (const auto& error : {transfer.sender().error(), transfer.receiver().error()}) {
        REQUIRE(error);
        CHECK(error->code == Errc::bad_input);
        CHECK(error->message.find("rope_theta: the receiver has 100000, the state 10000") != std::string::npos);
    }
    SUBCASE("the same model passes") {
        options.expected = state.header.identity;
        options.expected->weights_digest = Digest{};  // other weights of the same lineage
        Transfer same(state, 1, options);
        same.run();
        CHECK(same.identical());
    }
}

TEST_CASE("whatever differs between the models is refused before any data, in one line with both values") {
    const kv::State state = make_state();
    const auto refused = [&](auto change) {
        ReceiverOptions options;
        options.expected = state.header.identity;
        change(*options.expected);
        Transfer transfer(state, 1, options);
        transfer.run();
        REQUIRE(transfer.sender().error());
        REQUIRE(transfer.receiver().error());
        CHECK(transfer.sender().error()->code == Errc::bad_input);
        CHECK(transfer.sender().link().counters().bytes_sent < 3000);  // HELLO and OFFER
        CHECK(transfer.received().empty());
        const std::string message = transfer.sender().error()->message;
        CHECK(message.find('\n') == std::string::npos);
        CHECK(transfer.receiver().error()->message.find(message.substr(message.find("the state belongs"))) !=
              std::string::npos);
        return message;
    };
    const auto says = [](const std::string& message, const std::string& text) {
        CHECK_MESSAGE(message.find(text) != std::string::npos, message);
    };
    says(refused([](kv::Identity& id) { id.rope_theta = 500000; }),
         "rope_theta: the receiver has 500000, the state 10000");
    says(refused([](kv::Identity& id) { id.n_layers = 30; }), "n_layers: the receiver has 30, the state 3");
    says(refused([](kv::Identity& id) { id.n_kv_heads = 8; }), "n_kv_heads: the receiver has 8, the state 2");
    says(refused([](kv::Identity& id) { id.head_dim_k = 64; }), "head_dim_k: the receiver has 64, the state 8");
    says(refused([](kv::Identity& id) { id.n_heads = 64; }), "n_heads: the receiver has 64, the state ");
    says(refused([](kv::Identity& id) { id.head_dim_v = 16; }), "head_dim_v: the receiver has 16, the state 8");
    says(refused([](kv::Identity& id) { id.vocab_size += 1; }), "vocab_size: the receiver has ");
    says(refused([](kv::Identity& id) { id.context_length += 1; }), "context_length: the receiver has ");
    says(refused([](kv::Identity& id) { id.rope_applied = false; }),
         "rope_applied: the receiver has false, the state true");
    says(refused([](kv::Identity& id) { id.arch = "qwen2"; }), "arch: the receiver has qwen2, the state llama");
    says(refused([](kv::Identity& id) { id.rope_scaling = "yarn"; }),
         "rope_scaling: the receiver has yarn, the state none");
    const auto digests = [&](Digest kv::Identity::*field, const char* name) {
        Digest other = state.header.identity.*field;
        other[0] ^= 0xFF;
        const std::string message = refused([&](kv::Identity& id) { id.*field = other; });
        says(message, name);
        says(message, to_hex(other).substr(0, 8));
        says(message, to_hex(state.header.identity.*field).substr(0, 8));
    };
    digests(&kv::Identity::tokenizer_digest, "tokenizer_digest: the receiver has ");
    digests(&kv::Identity::arch_digest, "arch_digest: the receiver has ");
    digests(&kv::Identity::lineage, "lineage: the receiver has ");
}

TEST_CASE("a receiver that does not know its memory takes what comes") {
    const kv::State state = make_state();
    ReceiverOptions options;
    options.memory_bytes = 0;
    Transfer transfer(state, 1, options);
    transfer.run();
    CHECK(transfer.identical());
}

TEST_CASE("a receiver without the memory rejects before any data") {
    const kv::State state = make_state();
    ReceiverOptions options;
    options.memory_bytes = 100;
    Transfer transfer(state, 1, options);
    transfer.run();
    REQUIRE(transfer.sender().error());
    CHECK(transfer.sender().error()->code == Errc::resource);
    CHECK(transfer.receiver().error()->code == Errc::resource);
}

TEST_CASE("frames of another session or epoch are dropped and counted") {
    const kv::State state = make_state();
    Transfer transfer(state, 1, narrow());
    transfer.receiver_pause_s = 1;
    for (int i = 0; i < 50; ++i) transfer.tick();
    FrameHeader stale;
    stale.kind = FrameKind::commit;
    stale.session = 77;
    const auto root = encode_root({});
    stale.length = root.size();
    stale.payload_crc = crc32c(root);
    transfer.pair().inject(0, encode_frame(stale), root);
    stale.session = 0xABCDEF;
    stale.epoch = 2;
    transfer.pair().inject(0, encode_frame(stale), root);
    transfer.run();
    CHECK(transfer.identical());
    CHECK(transfer.receiver().link().counters().stale == 2);
}
