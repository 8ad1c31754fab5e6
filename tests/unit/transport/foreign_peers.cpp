// Peers of our making that break the protocol.
#include "transfer.h"
#include "transport/wire_bytes.h"

using namespace hetero;
using namespace hetero::test;

namespace {

// What a receiver answers when a peer of our making has sent `frames`.
std::optional<Error> receiver_meets(const std::vector<std::pair<FrameHeader, std::vector<std::byte>>>& frames) {
    const kv::State state = make_state();
    Transfer transfer(state, 1);
    transfer.sender_starts_at_s = 1000;
    std::uint32_t seq = 0;
    for (auto [header, payload] : frames) {
        header.session = 42;
        header.seq = seq++;
        header.length = payload.size();
        header.payload_crc = crc32c(payload);
        transfer.pair().inject(0, encode_frame(header), payload);
    }
    for (int i = 0; i < 3; ++i) transfer.tick();
    return transfer.receiver().error();
}

std::pair<FrameHeader, std::vector<std::byte>> frame(FrameKind kind, std::vector<std::byte> payload) {
    FrameHeader header;
    header.kind = kind;
    return {header, std::move(payload)};
}

Hello hello_for(const kv::State& state) {
    Hello hello;
    hello.compat_hash = kv::compat_hash(state.header.identity);
    return hello;
}

}  // namespace

TEST_CASE("peers that break the protocol are named and refused") {
    const kv::State state = make_state();
    Offer offer{state.header.payload_bytes(), state.header};
    const auto hello = frame(FrameKind::hello, encode(hello_for(state)));

    SUBCASE("a version that we do not speak") {
        Hello later = hello_for(state);
        later.min_version = 4;
        later.max_version = 5;
        auto sent = frame(FrameKind::hello, encode(later));
        const auto error = receiver_meets({sent});
        REQUIRE(error);
        CHECK(error->message.find("the sender speaks hkv-mpi 4 to 5, the receiver 1 to 3") != std::string::npos);
    }
    SUBCASE("an OFFER of version 1 in a conversation of version 2, and the other way round") {
        Hello later = hello_for(state);
        later.min_version = later.max_version = 2;
        auto error = receiver_meets({frame(FrameKind::hello, encode(later)), frame(FrameKind::offer, encode(offer))});
        REQUIRE(error);
        CHECK(error->message.find("OFFER is malformed") != std::string::npos);
        const kv::Header shard = synthetic_header(mixed_shape(), 1);
        Hello earlier;
        earlier.compat_hash = kv::compat_hash(shard.identity);
        error = receiver_meets({frame(FrameKind::hello, encode(earlier)),
                                frame(FrameKind::offer, encode(Offer{shard.payload_bytes(), shard}))});
        REQUIRE(error);
        CHECK(error->message.find("OFFER is malformed") != std::string::npos);
    }
    SUBCASE("HELLO and OFFER of different models") {
        Hello other = hello_for(state);
        other.compat_hash[0] ^= 1;
        const auto error =
            receiver_meets({frame(FrameKind::hello, encode(other)), frame(FrameKind::offer, encode(offer))});
        REQUIRE(error);
        CHECK(error->message.find("different models") != std::string::npos);
    }
    SUBCASE("two receivers") {
        Hello same = hello_for(state);
        same.role = WireRole::receiver;
        CHECK(receiver_meets({frame(FrameKind::hello, encode(same))}));
    }
    SUBCASE("OFFER first") { CHECK(receiver_meets({frame(FrameKind::offer, encode(offer))})); }
    SUBCASE("COMMIT before the chunks") {
        CHECK(
            receiver_meets({hello, frame(FrameKind::offer, encode(offer)), frame(FrameKind::commit, encode_root({}))}));
    }
    SUBCASE("a chunk in place of another") {
        auto chunk = frame(FrameKind::chunk, std::vector<std::byte>(8));
        chunk.first.layer = 2;
        CHECK(receiver_meets({hello, frame(FrameKind::offer, encode(offer)), chunk}));
    }
    SUBCASE("a chunk of another length") {
        auto chunk = frame(FrameKind::chunk, std::vector<std::byte>(8));
        CHECK(receiver_meets({hello, frame(FrameKind::offer, encode(offer)), chunk}));
    }
    SUBCASE("an acknowledgement of what was never sent") {
        auto ack = frame(FrameKind::ack, {});
        ack.first.ack = 1000;
        CHECK(receiver_meets({ack}));
    }
    SUBCASE("an OFFER larger than memory") {
        Offer huge = offer;
        huge.header.identity.n_kv_heads = huge.header.identity.n_heads = 1U << 12;
        huge.header.identity.head_dim_k = huge.header.identity.head_dim_v = 1U << 12;
        huge.payload_bytes = huge.header.payload_bytes();
        Transfer transfer(state, 1, ReceiverOptions{std::nullopt, 1ULL << 30, 64 << 20});
        // Sent properly, by a sender that means it.
        Sender& sender = transfer.sender();
        REQUIRE(sender.begin(huge.header));
        for (int i = 0; i < 20; ++i) transfer.receiver().step(TimePoint{});
        transfer.receiver().open(ReceiverOptions{std::nullopt, 1ULL << 30, 64 << 20});
        for (int i = 0; i < 20; ++i) {
            transfer.receiver().step(TimePoint{});
            sender.step(TimePoint{});
        }
        REQUIRE(sender.error());
        CHECK(sender.error()->code == Errc::resource);
    }
}

TEST_CASE("a state of a newer sender is refused with what it has and what the receiver knows") {
    const auto refused_as = [](const kv::Header& header, std::uint64_t payload_bytes, std::string_view why) {
        Hello hello;
        hello.max_version = max_protocol_version;
        hello.min_version = protocol_version_of(header);
        hello.compat_hash = kv::compat_hash(header.identity);
        const auto error =
            receiver_meets({frame(FrameKind::hello, encode(hello)),
                            frame(FrameKind::offer, encode(Offer{payload_bytes, header, {}}, max_protocol_version))});
        REQUIRE(error);
        CHECK(error->code == Errc::bad_input);  // the peer keeps to the protocol
        CHECK_MESSAGE(error->message == fmt::format("rank 0: {}", why), error->message);
    };
    kv::Header header = synthetic_header(mixed_shape(), 1);
    const std::uint64_t bytes = header.payload_bytes();
    SUBCASE("codec") {
        header.v_schemes.back().codec = "int7x";
        refused_as(header, bytes, fmt::format("codec int7x is offered, known here: {}", quant::codec_names()));
    }
    SUBCASE("axis") {
        header.k_schemes.front().params.axis = static_cast<quant::Axis>(9);
        refused_as(header, bytes, "scheme axis 9 is offered, known here: 0 to 3");
    }
    SUBCASE("kind of layer") {
        header.layer_shapes[1].kind = static_cast<kv::LayerKind>(7);
        refused_as(header, bytes, "layer kind 7 is offered, known here: 0 to 2");
    }
}

TEST_CASE("a state that needs version 2 meets a receiver of version 1") {
    const auto state = synthetic_state(mixed_shape(), 1);
    REQUIRE_MESSAGE(state, state.error().message);
    Transfer transfer(*state, 1);
    transfer.receiver_opens_at_s = 1000;
    for (int i = 0; i < 3; ++i) transfer.tick();
    Hello answer;  // versions 1 to 1
    answer.role = WireRole::receiver;
    auto [header, payload] = frame(FrameKind::hello_ack, encode(answer));
    header.session = 0xABCDEF;
    header.length = payload.size();
    header.payload_crc = crc32c(payload);
    transfer.pair().inject(1, encode_frame(header), payload);
    for (int i = 0; i < 3; ++i) transfer.tick();
    REQUIRE(transfer.sender().error());
    CHECK(transfer.sender().error()->code == Errc::peer);
    CHECK(transfer.sender().error()->message.find("speaks hkv-mpi 1 to 1, this state needs 2") != std::string::npos);
}
