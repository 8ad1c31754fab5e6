// Transfers to a receiver that holds some of the state.
#include "transfer.h"

using namespace hetero;
using namespace hetero::test;

namespace {

using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

std::uint64_t bytes_in(const kv::Header& header, const Ranges& ranges) {
    std::uint64_t bytes = 0;
    for (ChunkWalk walk(header); !walk.done(); walk.advance())
        for (const auto& [first, count] : ranges)
            if (walk.place().piece >= first && walk.place().piece - first < count) bytes += walk.place().length;
    return bytes;
}

// One frame from a side, in turn, to the other one.
void inject(Transfer& transfer, int side, FrameKind kind, std::uint32_t seq, std::vector<std::byte> payload) {
    FrameHeader header;
    header.kind = kind;
    header.session = 0xABCDEF;
    header.seq = seq;
    header.length = payload.size();
    header.payload_crc = crc32c(payload);
    transfer.pair().inject(side, encode_frame(header), std::move(payload));
    for (int i = 0; i < 3; ++i) transfer.tick_one(1 - side);
}

}  // namespace

TEST_CASE("what the receiver holds is left out, whichever pieces, and the state is the same") {
    const kv::State state = make_state();
    const std::uint64_t total = total_pieces(state.header);
    REQUIRE(total > 20);
    for (const Ranges& ranges : {Ranges{}, Ranges{{0, 1}}, Ranges{{0, total}}, Ranges{{total - 1, 1}},
                                 Ranges{{3, 5}, {8, 1}, {15, 2}}, Ranges{{0, total / 2}}, Ranges{{1, total - 2}}}) {
        for (const bool tight : {false, true}) {
            Transfer transfer(state, 1, tight ? narrow() : ReceiverOptions{});
            transfer.offer.resumable = true;
            transfer.hold(state, ranges);
            transfer.run();
            REQUIRE_MESSAGE(transfer.receiver().confirmed(), transfer.receiver().error()->message);
            CHECK(transfer.sender().committed());
            CHECK(transfer.identical());
            const std::uint64_t held = bytes_in(state.header, ranges);
            CHECK(transfer.sender().kept_bytes() == held);
            CHECK(transfer.receiver().kept_bytes() == held);
            CHECK(transfer.sender().link().counters().bytes_sent < state.header.payload_bytes() - held + 20000);
        }
    }
}

TEST_CASE("more held pieces than places and slots") {
    StateShape shape;
    shape.layers = 2;
    shape.tokens = {9000};
    shape.tokens_per_chunk = 1;
    shape.logits = false;
    const auto state = synthetic_state(shape, 5);
    REQUIRE(state);
    const std::uint64_t total = total_pieces(state->header);
    REQUIRE(total > 4 * wire_slots);
    Transfer transfer(*state, 1);
    transfer.offer.resumable = true;
    transfer.hold(*state, {{0, total - 3}});
    transfer.run(1000);
    REQUIRE_MESSAGE(!transfer.receiver().error(), transfer.receiver().error()->message);
    CHECK(transfer.identical());
    CHECK(transfer.sender().committed());
    CHECK(transfer.sender().kept_bytes() == bytes_in(state->header, {{0, total - 3}}));
}

TEST_CASE("held pieces of other bytes are sent: they cannot spoil the state") {
    const kv::State state = make_state(1);
    kv::State other = make_state(1);
    other.layers[0][1].k.values.bytes[5] ^= std::byte{1};
    other.layers[1][2].v.values.bytes.back() ^= std::byte{0x80};
    for (const bool tight : {false, true}) {
        Transfer transfer(state, 1, tight ? narrow() : ReceiverOptions{});
        transfer.offer.resumable = true;
        const Ranges all = {{0, total_pieces(state.header)}};
        transfer.hold(other, all);
        transfer.run();
        CHECK(transfer.sender().committed());
        CHECK(transfer.identical());
        CHECK(transfer.sender().kept_bytes() < state.header.payload_bytes());
        CHECK(transfer.sender().kept_bytes() > state.header.payload_bytes() / 2);
    }
}

TEST_CASE("held pieces over a channel that loses, damages and reorders") {
    const kv::State state = make_state();
    Faults faults;
    faults.drop = faults.duplicate = faults.reorder = faults.flip = 0.05;
    int succeeded = 0;
    for (std::uint32_t seed = 0; seed < 60; ++seed) {
        Transfer transfer(state, seed, narrow());
        transfer.offer.resumable = true;
        transfer.hold(state, {{seed % 7, seed % 11 + 1}, {20, seed % 3 + 1}});
        transfer.pair().set_faults(0, faults);
        transfer.pair().set_faults(1, faults);
        transfer.run();
        if (!transfer.receiver().confirmed()) continue;
        CHECK(transfer.identical());
        ++succeeded;
    }
    CHECK(succeeded > 30);
}

TEST_CASE("logits that come with COMMIT") {
    const kv::State whole = make_state();
    kv::State state = make_state();
    for (kv::Sequence& sequence : state.header.sequences) sequence.logits.clear();
    state.header.late_logits = true;
    Transfer transfer(state, 1);
    SUBCASE("arrive, and the root covers them") {
        for (const kv::Sequence& sequence : whole.header.sequences) transfer.late_logits.push_back(sequence.logits);
        transfer.run();
        REQUIRE(transfer.receiver().confirmed());
        CHECK(transfer.identical());
        CHECK(transfer.receiver().header().sequences[0].logits == whole.header.sequences[0].logits);
        CHECK(transfer.receiver().header().sequences[1].logits == whole.header.sequences[1].logits);
        CHECK(transfer.receiver().header().sequences[0].pending_token == state.header.sequences[0].pending_token);
    }
    SUBCASE("and a token that was chosen meanwhile") {
        transfer.late_logits.resize(2);
        transfer.late_pending = {5, -1};
        transfer.run();
        REQUIRE(transfer.receiver().confirmed());
        CHECK(transfer.receiver().header().sequences[0].pending_token == 5);
        CHECK(transfer.receiver().header().sequences[1].pending_token == state.header.sequences[1].pending_token);
    }
    SUBCASE("of another vocabulary are refused") {
        transfer.late_logits = {{1, 2, 3}, {}};
        transfer.run();
        REQUIRE(transfer.receiver().error());
        CHECK(transfer.receiver().error()->message.find("3 logits for a vocabulary of 50") != std::string::npos);
    }
}

TEST_CASE("KEEP of what is not held, not granted, beyond the end, or in version 1, is refused") {
    const kv::State state = make_state();
    const std::uint64_t total = total_pieces(state.header);
    const auto meets = [&](std::uint64_t pieces, std::uint16_t version, bool tight) {
        Transfer transfer(state, 1, tight ? narrow() : ReceiverOptions{});
        transfer.sender_starts_at_s = 1000;
        if (version == 3) transfer.hold(state, {{0, total - 1}});
        Hello hello;
        hello.min_version = hello.max_version = version;
        hello.compat_hash = kv::compat_hash(state.header.identity);
        inject(transfer, 0, FrameKind::hello, 0, encode(hello));
        inject(transfer, 0, FrameKind::offer, 1, encode(Offer{state.header.payload_bytes(), state.header}, version));
        inject(transfer, 0, FrameKind::keep, 2, encode_keep(pieces));
        return transfer.receiver().error() ? transfer.receiver().error()->message : std::string();
    };
    CHECK(meets(3, 3, false).empty());
    CHECK(meets(total - 1, 3, false).empty());
    CHECK(meets(total, 3, false).find("which is not held") != std::string::npos);
    CHECK(meets(~0ULL, 3, false).find("which is not held") != std::string::npos);
    CHECK(meets(total - 1, 3, true).find("pieces too many") != std::string::npos);
    CHECK(meets(1, 1, false).find("which is not held") != std::string::npos);
}

TEST_CASE("versions meet: the highest that both name, and nothing held before 3") {
    const kv::State state = make_state();
    for (const std::uint16_t highest : {1, 2, 3, 9}) {
        Transfer transfer(state, 1);
        transfer.offer.resumable = true;
        transfer.receiver_opens_at_s = 1000;
        for (int i = 0; i < 3; ++i) transfer.tick_one(0);
        Hello answer;
        answer.role = WireRole::receiver;
        answer.max_version = highest;
        inject(transfer, 1, FrameKind::hello_ack, 0, encode(answer));
        const auto version = std::min<std::uint16_t>(highest, 3);
        inject(transfer, 1, FrameKind::accept, 1, encode(Accept{6, {{0, {1}}}}, version));
        REQUIRE_MESSAGE(!transfer.sender().error(), transfer.sender().error()->message);
        CHECK(transfer.sender().accepted());
        CHECK(transfer.sender().held(0).has_value() == (version == 3));
        CHECK_FALSE(transfer.sender().held(1));
    }
}
