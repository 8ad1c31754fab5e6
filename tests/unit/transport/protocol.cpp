// Sender and receiver against each other over a channel that misbehaves, on a clock of their own.
#include <doctest/doctest.h>

#include "memory_channel.h"
#include "synthetic_state.h"
#include "transport/receiver.h"
#include "transport/sender.h"
#include "transport/wire_bytes.h"

using namespace hetero;
using namespace hetero::transport;
using hetero::test::Faults;
using hetero::test::MemoryPair;

namespace {

class Transfer {
public:
    Transfer(const kv::State& state, std::uint32_t seed, ReceiverOptions options = {})
        : state_(&state),
          pair_(seed),
          sender_link_(pair_.end(0), link_options(WireRole::sender), now_),
          receiver_link_(pair_.end(1), link_options(WireRole::receiver), now_),
          sender_(sender_link_),
          receiver_(receiver_link_),
          options_(std::move(options)) {}

    MemoryPair& pair() { return pair_; }
    Sender& sender() { return sender_; }
    Receiver& receiver() { return receiver_; }
    const std::vector<kv::Layer>& received() const { return layers_; }
    [[nodiscard]] double elapsed_s() const { return std::chrono::duration<double>(now_ - TimePoint{}).count(); }

    // One tick of 5 ms on both sides. A dead side does nothing.
    void tick() {
        pair_.set_time(now_);
        if (!pair_.dead(0)) step_sender();
        if (!pair_.dead(1)) step_receiver();
        now_ += std::chrono::milliseconds(5);
    }
    [[nodiscard]] bool sender_over() const { return pair_.dead(0) || sender_.committed() || sender_.error(); }
    [[nodiscard]] bool receiver_over() const { return pair_.dead(1) || receiver_.confirmed() || receiver_.error(); }
    [[nodiscard]] bool over() const { return sender_over() && receiver_over(); }
    void run(double limit_s = 60) {
        while (!over() && elapsed_s() < limit_s) tick();
        REQUIRE_MESSAGE(over(), "not over after ", limit_s, " s");
    }
    [[nodiscard]] bool identical() const {
        if (layers_.size() != total_layers(state_->header)) return false;
        const std::size_t n = state_->header.identity.n_layers;
        for (std::size_t i = 0; i < layers_.size(); ++i)
            if (!test::same_bytes(layers_[i], state_->layers[i / n][i % n])) return false;
        return true;
    }

    double sender_starts_at_s = 0, receiver_opens_at_s = 0, receiver_pause_s = 0;

private:
    static LinkOptions link_options(WireRole role) {
        LinkOptions options;
        options.role = role;
        options.peer = role == WireRole::sender ? "rank 1" : "rank 0";
        options.session = role == WireRole::sender ? 0xABCDEF : 0;
        return options;
    }

    void step_sender() {
        sender_.step(now_);
        if (sender_.error() || sender_.committed()) return;
        if (!sender_.started()) {
            if (elapsed_s() < sender_starts_at_s) return;
            walk_.emplace(state_->header);
            tables_.assign(state_->layers.size(), std::vector<kv::LayerChecksums>(state_->header.identity.n_layers));
            REQUIRE(sender_.begin(state_->header));
            return;
        }
        while (!walk_->done() && sender_.may_send(walk_->place().layer_index)) {
            const ChunkPlace& place = walk_->place();
            const auto& array =
                array_of(state_->layers[place.sequence][place.layer].part(place.part), place.array).bytes;
            const auto first = array.begin() + static_cast<std::ptrdiff_t>(place.offset);
            Payload payload = own_payload({first, first + static_cast<std::ptrdiff_t>(place.length)});
            const std::uint32_t crc = crc32c(payload.bytes);
            kv::LayerChecksums& table = tables_[place.sequence][place.layer];
            array_of(place.part == kv::PartId::k ? table.k : table.v, place.array).push_back(crc);
            sender_.send(place, crc, std::move(payload));
            walk_->advance();
        }
        if (walk_->done() && sender_.accepted() && !commit_sent_) {
            commit_sent_ = true;
            sender_.commit(kv::root_digest(state_->header, tables_));
        }
    }

    void step_receiver() {
        if (elapsed_s() >= receiver_opens_at_s && !opened_) {
            opened_ = true;
            receiver_.open(options_);
        }
        receiver_.step(now_);
        if (receiver_.error() || receiver_.confirmed() || !receiver_.accepted()) return;
        while (receiver_.layer_ready() && elapsed_s() >= next_take_s_) {
            next_take_s_ = elapsed_s() + receiver_pause_s;
            ReceivedLayer layer = receiver_.take_layer();
            layers_.push_back(std::move(layer.layer));
            const std::size_t n = receiver_.header().identity.n_layers;
            if ((layers_.size() - 1) % n == 0) received_tables_.emplace_back();
            received_tables_.back().push_back(std::move(layer.checksums));
            while (receiver_.wants_buffer()) {
                auto buffer =
                    allocate_layer(receiver_.header(), receiver_.next_buffer() / n, receiver_.next_buffer() % n);
                REQUIRE(buffer);
                receiver_.grant(std::move(*buffer));
            }
        }
        if (receiver_.root() && layers_.size() == total_layers(receiver_.header())) {
            const Digest own = kv::root_digest(receiver_.header(), received_tables_);
            if (own == *receiver_.root()) {
                receiver_.confirm();
            } else {
                receiver_.refuse_root(own);
            }
        }
    }

    const kv::State* state_;
    TimePoint now_{};
    MemoryPair pair_;
    Link sender_link_, receiver_link_;
    Sender sender_;
    Receiver receiver_;
    ReceiverOptions options_;
    std::optional<ChunkWalk> walk_;
    std::vector<std::vector<kv::LayerChecksums>> tables_, received_tables_;
    std::vector<kv::Layer> layers_;
    bool commit_sent_ = false, opened_ = false;
    double next_take_s_ = 0;
};

kv::State make_state(std::uint32_t seed = 1) {
    test::StateShape shape;
    shape.tokens = {13, 6};
    auto state = test::synthetic_state(shape, seed);
    REQUIRE_MESSAGE(state, state.error().message);
    return std::move(*state);
}

ReceiverOptions narrow() {  // as little granted ahead as possible, so that credit matters
    ReceiverOptions options;
    options.granted_bytes = 1;
    return options;
}

struct Outcome {
    int succeeded = 0, failed = 0;
    LinkCounters total;  // of both sides, so that a drill can show that its faults took place
};

// Over many seeds: success with the same bytes, or an error on the side that did not succeed. Never a hang (run()).
Outcome drill(const Faults& from_sender, const Faults& from_receiver, int seeds) {
    const kv::State state = make_state();
    Outcome outcome;
    for (int seed = 0; seed < seeds; ++seed) {
        Transfer transfer(state, static_cast<std::uint32_t>(seed), narrow());
        transfer.pair().set_faults(0, from_sender);
        transfer.pair().set_faults(1, from_receiver);
        transfer.run();
        CAPTURE(seed);
        if (transfer.receiver().confirmed()) CHECK(transfer.identical());
        if (transfer.sender().committed()) CHECK(transfer.receiver().confirmed());
        for (const auto& error : {transfer.sender().error(), transfer.receiver().error()}) {
            if (!error) continue;
            CHECK(error->code == Errc::peer);
            CHECK(error->message.find("rank") != std::string::npos);
        }
        for (const Link* link : {&transfer.sender().link(), &transfer.receiver().link()}) {
            outcome.total.resent += link->counters().resent;
            outcome.total.damaged += link->counters().damaged;
            outcome.total.duplicates += link->counters().duplicates;
        }
        ++(transfer.sender().committed() && transfer.receiver().confirmed() ? outcome.succeeded : outcome.failed);
    }
    return outcome;
}

constexpr int seeds = 100;

}  // namespace

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

TEST_CASE("duplicates and any order are invisible") {
    Faults faults;
    faults.duplicate = 0.3;
    faults.reorder = 0.3;
    const Outcome outcome = drill(faults, faults, seeds);
    CHECK(outcome.failed == 0);
    CHECK(outcome.total.duplicates > seeds);
}

TEST_CASE("delays of up to half a second are invisible") {
    Faults faults;
    faults.max_delay_s = 0.5;
    CHECK(drill(faults, faults, seeds).failed == 0);
}

TEST_CASE("damaged payloads are sent again") {
    Faults faults;
    faults.flip_payload = 0.1;
    faults.truncate = 0.02;
    const Outcome outcome = drill(faults, {}, seeds);
    CHECK(outcome.succeeded > seeds / 2);
    CHECK(outcome.total.damaged > seeds);
    CHECK(outcome.total.resent > seeds);
}

TEST_CASE("payloads that always arrive damaged end the transfer after three repeats") {
    Faults faults;
    faults.flip_payload = 1;
    const kv::State state = make_state();
    Transfer transfer(state, 1);
    transfer.pair().set_faults(0, faults);
    transfer.run();
    REQUIRE(transfer.sender().error());
    CHECK(transfer.sender().error()->message.find("damaged") != std::string::npos);
    CHECK(transfer.sender().link().counters().resent == 3);
    CHECK(transfer.receiver().error());
}

TEST_CASE("lost frames are asked for again") {
    Faults faults;
    faults.drop = 0.1;
    const Outcome outcome = drill(faults, faults, seeds);
    CHECK(outcome.succeeded > seeds / 2);
    CHECK(outcome.total.resent > seeds);
}

TEST_CASE("damaged headers") {
    Faults faults;
    faults.flip_header = 0.05;
    const Outcome outcome = drill(faults, faults, seeds);
    CHECK(outcome.succeeded > 0);
}

TEST_CASE("all faults at once") {
    Faults faults;
    faults.drop = faults.duplicate = faults.reorder = faults.flip_header = faults.flip_payload = faults.truncate = 0.03;
    faults.max_delay_s = 0.2;
    const Outcome outcome = drill(faults, faults, 3 * seeds);
    CHECK(outcome.succeeded > 0);
}

TEST_CASE("either side dies at any frame: the other ends within the time of silence") {
    const kv::State state = make_state();
    for (const int side : {0, 1}) {
        Transfer whole(state, 1, narrow());
        whole.run();
        for (std::int64_t at = 0; at < whole.pair().sent(side); ++at) {
            Transfer transfer(state, 1, narrow());
            Faults faults;
            faults.dead_at = at;
            transfer.pair().set_faults(side, faults);
            transfer.run(60);
            CAPTURE(side);
            CAPTURE(at);
            CHECK(transfer.elapsed_s() < 10);
            if (side == 0) {
                // Whatever the sender did before, what the receiver takes for complete is complete.
                if (transfer.receiver().confirmed()) {
                    CHECK(transfer.identical());
                } else {
                    REQUIRE(transfer.receiver().error());
                    CHECK(transfer.receiver().error()->message.find("no sign of life") != std::string::npos);
                }
            } else if (!transfer.sender().committed()) {
                REQUIRE(transfer.sender().error());
                CHECK(transfer.sender().error()->code == Errc::peer);
            }
        }
    }
}

TEST_CASE("a stall with heartbeats still coming is told apart from death") {
    const kv::State state = make_state();
    for (const int side : {0, 1}) {
        for (std::int64_t at = 0; at < 12; ++at) {
            Transfer transfer(state, 1, narrow());
            Faults faults;
            faults.stall_at = at;
            transfer.pair().set_faults(side, faults);
            transfer.run(60);
            CHECK(transfer.elapsed_s() < 30);
            if (!transfer.sender().committed()) REQUIRE(transfer.sender().error());
            if (!transfer.receiver().confirmed()) REQUIRE(transfer.receiver().error());
            const bool told = (transfer.sender().error() &&
                               transfer.sender().error()->message.find("stalled") != std::string::npos) ||
                              (transfer.receiver().error() &&
                               transfer.receiver().error()->message.find("stalled") != std::string::npos);
            CHECK((told || (transfer.sender().committed() && transfer.receiver().confirmed())));
        }
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
        later.min_version = 2;
        later.max_version = 3;
        auto sent = frame(FrameKind::hello, encode(later));
        const auto error = receiver_meets({sent});
        REQUIRE(error);
        CHECK(error->message.find("hkv-mpi 2 to 3") != std::string::npos);
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

TEST_CASE("noise ends the conversation at once") {
    const kv::State state = make_state();
    for (std::uint32_t seed = 0; seed < 50; ++seed) {
        std::mt19937 random(seed);
        for (const int from : {0, 1}) {
            Transfer transfer(state, seed);
            const std::uint32_t at = random() % 30;
            for (std::uint32_t i = 0; i < at && !transfer.over(); ++i) transfer.tick();
            HeaderBytes noise;
            for (std::byte& b : noise) b = static_cast<std::byte>(random());
            noise[0] = std::byte{0};
            std::vector<std::byte> payload(random() % 100);
            const bool running = !transfer.over();
            transfer.pair().inject(from, noise, payload);
            transfer.run();
            if (running) CHECK((from == 0 ? transfer.receiver().error() : transfer.sender().error()));
        }
    }
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
