// Source and sink over the in-memory channel, each in a thread of its own, with a third that moves the frames.
#include "transport/wire_stream.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "memory_channel.h"
#include "synthetic_state.h"

using namespace hetero;
using namespace hetero::transport;

namespace {

// Both ends and the thread that drives them.
struct Wire {
    test::MemoryPair pair{1};
    TimePoint begin = std::chrono::steady_clock::now();
    Gate gate;
    Link sender_link{pair.end(0), test::link_options(WireRole::sender), begin};
    Link receiver_link{pair.end(1), test::link_options(WireRole::receiver), begin};
    Sender sender{sender_link};
    Receiver receiver{receiver_link};
    std::atomic<bool> stop = false;
    std::thread mover;

    Wire() {
        mover = std::thread([this] {
            while (!stop.load()) {
                {
                    auto lock = gate.enter_last();
                    const TimePoint now = std::chrono::steady_clock::now();
                    pair.set_time(now);
                    sender.step(now);
                    receiver.step(now);
                    gate.changed();
                    gate.rest(lock, 1e-4);
                }
                std::this_thread::yield();
            }
        });
    }
    ~Wire() {
        stop = true;
        mover.join();
    }
};

Result<kv::State> receive(Wire& wire, ReceiverOptions options = {}) {
    HETERO_TRY(const auto source, wire_source(wire.gate, wire.receiver, std::move(options)));
    return kv::read_all(*source);
}

}  // namespace

TEST_CASE("a state that is larger than the window and what is granted ahead") {
    test::StateShape shape;
    shape.layers = 6;
    shape.head_dim = 64;
    shape.tokens = {20000, 3};
    shape.tokens_per_chunk = 0;
    const auto state = test::synthetic_state(shape, 2);
    REQUIRE_MESSAGE(state, state.error().message);
    REQUIRE(state->header.payload_bytes() > 2 * send_window_bytes);
    Wire wire;
    ReceiverOptions narrow;
    narrow.granted_bytes = 1;
    Result<kv::State> got = fail(Errc::internal, "nothing yet");
    std::thread reader([&] { got = receive(wire, narrow); });
    const auto sink = wire_sink(wire.gate, wire.sender);
    const Status sent = kv::write_all(*state, *sink);
    reader.join();
    REQUIRE_MESSAGE(sent, sent.error().message);
    REQUIRE_MESSAGE(got, got.error().message);
    for (std::size_t s = 0; s < 2; ++s)
        for (std::size_t l = 0; l < shape.layers; ++l) CHECK(test::same_bytes(state->layers[s][l], got->layers[s][l]));
    CHECK(got->header.sequences[0].tokens == state->header.sequences[0].tokens);
}

TEST_CASE("an aborted sink ends the reader with its reason") {
    const auto state = test::synthetic_state({}, 2);
    REQUIRE(state);
    Wire wire;
    Result<kv::State> got = fail(Errc::internal, "nothing yet");
    std::thread reader([&] { got = receive(wire); });
    {
        const auto sink = wire_sink(wire.gate, wire.sender);
        REQUIRE(sink->begin(state->header));
        REQUIRE(sink->write_layer(state->layers[0][0]));
        sink->abort({Errc::bad_input, "layer 1: K value NaN"});
        sink->abort({Errc::bad_input, "said twice"});
        CHECK_FALSE(sink->write_layer(state->layers[0][1]));
    }
    reader.join();
    REQUIRE_FALSE(got);
    CHECK(got.error().code == Errc::peer);
    CHECK(got.error().message == "rank 0 gave up: layer 1: K value NaN");
}

TEST_CASE("a layer that does not fit the header is refused before it is sent") {
    const auto state = test::synthetic_state({}, 2);
    REQUIRE(state);
    Wire wire;
    std::thread reader([&] { CHECK_FALSE(receive(wire)); });
    {
        const auto sink = wire_sink(wire.gate, wire.sender);
        REQUIRE(sink->begin(state->header));
        kv::Layer wrong = state->layers[0][0];
        wrong.k.values.bytes.pop_back();
        CHECK_FALSE(sink->write_layer(wrong));
        CHECK_FALSE(sink->commit());
    }  // dropped without commit: the reader is told
    reader.join();
}
