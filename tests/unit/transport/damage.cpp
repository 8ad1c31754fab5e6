// Every byte of a state on its way, flipped or cut off: found, and named by its place.
#include "transfer.h"

using namespace hetero;
using namespace hetero::test;

namespace {

kv::State two_parts() {  // of different codecs, with scales and kept tokens
    StateShape shape;
    shape.layers = 2;
    shape.tokens = {13, 6};
    shape.k_codec = "int8";
    shape.k_params = {quant::Axis::token, 0, false, kv::DType::f16};
    shape.sinks = 1;
    shape.window = 2;
    shape.logits = false;
    auto state = synthetic_state(shape, 3);
    REQUIRE_MESSAGE(state, state.error().message);
    return std::move(*state);
}

// Changes the payload of the piece `place`, the first `times` times that it is sent.
struct Damage {
    ChunkPlace place;
    std::function<void(std::vector<std::byte>&)> change;
    int times = 1000;
    void operator()(int end, HeaderBytes& head, std::vector<std::byte>& payload) {
        const auto header = decode_frame(head);
        if (end != 0 || !header || !place.matches(*header) || times-- <= 0) return;
        change(payload);
    }
};

std::string text_of(const ChunkPlace& place) {
    const char* arrays[] = {"values", "scale", "zero", "sinks", "tail"};
    return fmt::format("sequence {}, layer {}, {} {}, chunk {} arrived damaged", place.sequence, place.layer,
                       place.part == kv::PartId::k ? "K" : "V", arrays[static_cast<int>(place.array)], place.chunk);
}

void check_named(const kv::State& state, const Damage& damage) {
    Transfer transfer(state, 1);
    transfer.pair().tamper = damage;
    transfer.run();
    REQUIRE(transfer.sender().error());
    CHECK(transfer.sender().error()->message.find(text_of(damage.place)) == 0);
    REQUIRE(transfer.receiver().error());
    CHECK(transfer.receiver().error()->message.find(text_of(damage.place)) != std::string::npos);
    CHECK_FALSE(transfer.receiver().confirmed());
}

}  // namespace

TEST_CASE("a flipped byte of a chunk, whichever, is named by sequence, layer, array and chunk, or sent again") {
    const kv::State state = two_parts();
    std::uint64_t flipped = 0;
    for (ChunkWalk walk(state.header); !walk.done(); walk.advance()) {
        for (std::uint64_t i = 0; i < walk.place().length; ++i, ++flipped) {
            const auto flip = [i](std::vector<std::byte>& payload) {
                payload[i] ^= static_cast<std::byte>(1U << i % 8);
            };
            check_named(state, {walk.place(), flip});
            if (i % 5 != 0) continue;
            Transfer transfer(state, 1);
            transfer.pair().tamper = Damage{walk.place(), flip, 3};
            transfer.run();
            CHECK(transfer.receiver().confirmed());
            CHECK(transfer.identical());
            CHECK(transfer.sender().link().counters().resent == 3);
        }
    }
    CHECK(flipped == state.header.payload_bytes());
}

TEST_CASE("a chunk that is cut off at any 512 bytes is named, or sent again") {
    StateShape shape;
    shape.layers = 1;
    shape.head_dim = 64;
    shape.tokens = {40};
    shape.tokens_per_chunk = 16;
    const auto state = synthetic_state(shape, 3);
    REQUIRE(state);
    for (ChunkWalk walk(state->header); !walk.done(); walk.advance()) {
        for (std::uint64_t bytes = 0; bytes < walk.place().length; bytes += 512) {
            const auto cut = [bytes](std::vector<std::byte>& payload) { payload.resize(bytes); };
            check_named(*state, {walk.place(), cut});
            Transfer transfer(*state, 1);
            transfer.pair().tamper = Damage{walk.place(), cut, 1};
            transfer.run();
            CHECK(transfer.identical());
        }
    }
}

TEST_CASE("a flipped byte of any frame, header or payload, ends the transfer or changes nothing") {
    const kv::State state = make_state();
    for (const int from : {0, 1}) {
        // Every byte of the first frames of each kind, once.
        std::map<FrameKind, std::size_t> sizes;
        Transfer whole(state, 1, narrow());
        whole.pair().tamper = [&](int end, const HeaderBytes& head, const std::vector<std::byte>& payload) {
            if (end == from) sizes.emplace(decode_frame(head)->kind, head.size() + payload.size());
        };
        whole.run();
        REQUIRE(sizes.size() >= 4);
        for (const auto& [kind, size] : sizes) {
            for (std::size_t i = 0; i < size; ++i) {
                bool done = false;
                Transfer transfer(state, 1, narrow());
                transfer.pair().tamper = [&, wanted = kind](int end, HeaderBytes& head,
                                                            std::vector<std::byte>& payload) {
                    if (done || end != from) return;
                    const auto header = decode_frame(head);
                    if (!header || header->kind != wanted) return;
                    done = true;
                    auto& byte = i < head.size() ? head[i] : payload[i - head.size()];
                    byte ^= static_cast<std::byte>(1U << i % 8);
                };
                transfer.run();
                CAPTURE(frame_kind_name(kind));
                CAPTURE(i);
                if (transfer.receiver().confirmed()) CHECK(transfer.identical());
                if (transfer.sender().committed()) CHECK(transfer.receiver().confirmed());
            }
        }
    }
}
