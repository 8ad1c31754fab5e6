// Source and sink over the in-memory channel, each in a thread of its own, with a third that moves the frames.
#include "transport/wire_stream.h"

#include <doctest/doctest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "support/temp_dir.h"
#include "synthetic_state.h"
#include "wire.h"

using namespace hetero;
using namespace hetero::transport;
using test::Wire;

namespace {

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
    REQUIRE(state->header.payload_bytes() > 2 * SendWindow{}.bytes);
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

TEST_CASE("checksums that a layer comes with are sent with it, and compared where it arrives") {
    const auto state = test::synthetic_state({}, 2);
    REQUIRE(state);
    for (const bool right : {true, false}) {
        CAPTURE(right);
        Wire wire;
        Status read;
        std::uint64_t verified = 0;
        std::thread reader([&] {
            const auto source = wire_source(wire.gate, wire.receiver, {});
            REQUIRE(source);
            for (std::uint64_t i = 0; read && i < total_layers((*source)->header()); ++i) {
                const auto layer = (*source)->read_layer();
                if (layer) {
                    const kv::LayerChecksums* known = kv::verified_checksums((*source)->header(), *layer);
                    REQUIRE(known != nullptr);
                    verified += *known == kv::checksum_layer((*source)->header(), *layer) ? 1 : 0;
                } else {
                    read = tl::unexpected<Error>(layer.error());
                }
            }
            if (read) read = (*source)->finish();
        });
        const auto sink = wire_sink(wire.gate, wire.sender);
        const auto send = [&]() -> Status {
            HETERO_CHECK(sink->begin(state->header));
            for (const kv::Layer& one : state->layers[0]) {
                kv::Layer layer = one;
                kv::LayerChecksums checksums = kv::checksum_layer(state->header, layer);
                if (!right) checksums.v.values[0] ^= 1;
                layer.verified = std::make_shared<kv::VerifiedPieces>(
                    kv::VerifiedPieces{state->header.tokens_per_chunk, std::move(checksums)});
                HETERO_CHECK(sink->write_shared(std::make_shared<kv::Layer>(std::move(layer))));
            }
            return sink->commit();
        };
        const Status sent = send();
        reader.join();
        CHECK(sent.has_value() == right);
        CHECK(read.has_value() == right);
        CHECK(verified == (right ? state->layers[0].size() : 0));
        if (!right)
            CHECK(sent.error().message.find("V values, chunk 0 arrived damaged at rank 1 4 times") !=
                  std::string::npos);
    }
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

TEST_CASE("a transfer into a file goes on where one broke off, and is confirmed when the file is there") {
    test::StateShape shape;
    shape.layers = 6;
    shape.tokens = {300, 20};
    const auto state = test::synthetic_state(shape, 2);
    REQUIRE(state);
    const test::TempDir folder;
    const std::string path = folder / "out.h5";
    const auto bytes_of = [](const std::string& name) {
        std::ifstream in(name, std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(in), {});
    };
    {
        const auto sink = kv::create_file(folder / "unbroken.h5", io::Overwrite::refuse);
        REQUIRE(sink);
        REQUIRE(kv::write_all(*state, **sink));
    }
    // As kv-send does; `confirmed` as the sender sees it while the file does not have its name yet.
    const auto store = [&](Wire& wire, bool& confirmed) -> Status {
        ReceiverOptions narrow;
        narrow.granted_bytes = 1;
        const auto resume = std::make_shared<Resume>(path, Resume::Pace{1, 0.001});
        HETERO_TRY(const auto source, wire_source(wire.gate, wire.receiver, narrow, resume, true));
        HETERO_TRY(const auto sink, resume->create_sink(io::Overwrite::refuse));
        const auto copy = [&]() -> Status {
            HETERO_CHECK(sink->begin(source->header()));
            for (std::uint64_t i = 0; i < total_layers(source->header()); ++i) {
                HETERO_TRY(const kv::Layer layer, source->read_layer());
                HETERO_CHECK(sink->write_layer(layer));
            }
            return source->finish();
        };
        if (const Status copied = copy(); !copied) {
            sink->abort(copied.error());
            return copied;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        {
            const auto lock = wire.gate.enter();
            confirmed = wire.sender.committed();
        }
        HETERO_CHECK(sink->commit());
        return confirm(wire.gate, wire.receiver);
    };
    std::uint64_t kept = 0;
    for (const std::uint64_t layers : {5, 3, 9, 12}) {
        Wire wire;
        Status stored;
        bool confirmed = false;
        std::thread reader([&] { stored = store(wire, confirmed); });
        const auto sink = wire_sink(wire.gate, wire.sender);
        REQUIRE(sink->begin(state->header));
        for (std::uint64_t i = 0; i < layers; ++i) REQUIRE(sink->write_layer(state->layers[i / 6][i % 6]));
        if (layers < 12) {
            sink->abort({Errc::bad_input, "a.h5: truncated"});
        } else {
            const Status sent = sink->commit();
            CHECK_MESSAGE(sent, sent.error().message);
        }
        reader.join();
        CHECK(stored.has_value() == (layers == 12));
        CHECK_FALSE(confirmed);
        if (layers < 12) continue;
        kept = wire.sender.kept_bytes();
        CHECK(wire.receiver.kept_bytes() == kept);
    }
    // Of the third transfer all layers but those on their way when it ended, which are at most three here.
    CHECK(kept >= state->header.payload_bytes() / 3);
    CHECK(kept < state->header.payload_bytes());
    CHECK(bytes_of(path) == bytes_of(folder / "unbroken.h5"));
    CHECK(folder.names() == std::vector<std::string>{"out.h5", "unbroken.h5"});
}

TEST_CASE("a sender learns that what had arrived could not be stored") {
    const auto state = test::synthetic_state({}, 2);
    REQUIRE(state);
    Wire wire;
    std::thread reader([&] {
        const auto source = wire_source(wire.gate, wire.receiver, {}, nullptr, true);
        REQUIRE(source);
        while (true) {
            if (!(*source)->read_layer()) break;
        }
        CHECK((*source)->finish());
        auto lock = wire.gate.enter();
        wire.receiver.link().give_up({Errc::resource, "b.h5: No space left on device"});
        wire.gate.nudge();
    });
    const auto sink = wire_sink(wire.gate, wire.sender);
    const Status sent = kv::write_all(*state, *sink);
    reader.join();
    REQUIRE_FALSE(sent);
    CHECK(sent.error().message == "rank 1 gave up: b.h5: No space left on device");
}
