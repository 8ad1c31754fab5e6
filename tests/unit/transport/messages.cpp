#include "transport/messages.h"

#include <doctest/doctest.h>

#include <random>

#include "synthetic_state.h"

using namespace hetero;
using namespace hetero::transport;

namespace {

Offer example_offer() {
    test::StateShape shape;
    shape.tokens = {13, 1, 5};
    Offer offer;
    offer.header = test::synthetic_header(shape, 1);
    offer.payload_bytes = offer.header.payload_bytes();
    return offer;
}

}  // namespace

TEST_CASE("an OFFER carries every field of the header") {
    const Offer offer = example_offer();
    REQUIRE(kv::check_header(offer.header));
    const auto bytes = encode(offer);
    const auto decoded = decode_offer(bytes, 1);
    REQUIRE_MESSAGE(decoded, decoded.error().message);
    CHECK(decoded->payload_bytes == offer.payload_bytes);
    const kv::Header &a = offer.header, &b = decoded->header;
    CHECK(kv::compare(a.identity, b.identity).empty());
    CHECK(kv::compat_hash(a.identity) == kv::compat_hash(b.identity));
    CHECK(a.identity.model_id == b.identity.model_id);
    CHECK(a.identity.weights_digest == b.identity.weights_digest);
    CHECK(a.tokens_per_chunk == b.tokens_per_chunk);
    CHECK(a.k_schemes == b.k_schemes);
    CHECK(a.v_schemes == b.v_schemes);
    REQUIRE(b.sequences.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(a.sequences[i].id == b.sequences[i].id);
        CHECK(a.sequences[i].tokens == b.sequences[i].tokens);
        CHECK(a.sequences[i].logits == b.sequences[i].logits);
        CHECK(a.sequences[i].pending_token == b.sequences[i].pending_token);
        CHECK(a.sequences[i].special_parsed == b.sequences[i].special_parsed);
    }
    REQUIRE(b.provenance.size() == 1);
    CHECK(b.provenance[0].what == a.provenance[0].what);
    CHECK(encode(*decoded) == bytes);
    // The root covers the header: it must not change on the way.
    CHECK(kv::root_digest(a, {}) == kv::root_digest(b, {}));
}

TEST_CASE("an OFFER cut anywhere, or with bytes behind it, is refused") {
    auto bytes = encode(example_offer());
    for (std::size_t n = 0; n < bytes.size(); ++n) CHECK_FALSE(decode_offer(std::span(bytes).first(n), 1));
    bytes.push_back(std::byte{0});
    CHECK_FALSE(decode_offer(bytes, 1));
}

TEST_CASE("a damaged OFFER never does more than be refused or differ") {
    const auto bytes = encode(example_offer());
    std::mt19937 random(5);
    int refused = 0;
    for (int i = 0; i < 3000; ++i) {
        auto damaged = bytes;
        for (int k = 0; k < 3; ++k) damaged[random() % damaged.size()] = static_cast<std::byte>(random());
        const auto decoded = decode_offer(damaged, 1);
        if (!decoded) {
            ++refused;
            // A name that is not known may be that of a newer sender.
            const bool named = decoded.error().message.find(" is offered, known here: ") != std::string::npos;
            CHECK(decoded.error().code == (named ? Errc::bad_input : Errc::peer));
        } else {
            CHECK(decoded->payload_bytes == decoded->header.payload_bytes());
        }
    }
    CHECK(refused > 0);
}

TEST_CASE("an OFFER whose size and header disagree is refused") {
    Offer offer = example_offer();
    offer.payload_bytes += 1;
    CHECK_FALSE(decode_offer(encode(offer), 1));
    offer = example_offer();
    offer.header.tokens_per_chunk = 0;
    CHECK_FALSE(decode_offer(encode(offer), 1));
}

TEST_CASE("an OFFER of version 2 carries layer shapes and the shard; one without them stays what it was") {
    CHECK(protocol_version_of(example_offer().header) == 1);
    Offer offer;
    offer.header = test::synthetic_header(test::mixed_shape(), 1);
    CHECK(protocol_version_of(offer.header) == 2);
    offer.payload_bytes = offer.header.payload_bytes();
    auto bytes = encode(offer);
    const auto decoded = decode_offer(bytes, 2);
    REQUIRE_MESSAGE(decoded, decoded.error().message);
    CHECK(decoded->header.layer_shapes == offer.header.layer_shapes);
    CHECK(decoded->header.shard == offer.header.shard);
    CHECK(encode(*decoded) == bytes);
    CHECK_FALSE(decode_offer(bytes, 1));
    CHECK_FALSE(decode_offer(encode(example_offer()), 2));
    for (std::size_t n = 0; n < bytes.size(); ++n) CHECK_FALSE(decode_offer(std::span(bytes).first(n), 2));

    // As hetero-wire(5) gives the end of the payload.
    const std::vector<std::uint8_t> expected = {4, 0, 0, 0,              //
                                                1, 6, 0, 0, 0,           //
                                                0, 0, 0, 0, 0,           //
                                                2, 0, 0, 0, 0,           //
                                                1, 1, 0, 0, 0,           //
                                                2, 0, 0, 0, 1, 0, 0, 0,  //
                                                0, 0, 0, 0, 1, 0, 0, 0};
    const auto tail = std::as_bytes(std::span(expected));
    REQUIRE(bytes.size() > tail.size());
    CHECK(std::equal(tail.begin(), tail.end(), bytes.end() - static_cast<std::ptrdiff_t>(tail.size())));
    offer.header.layer_shapes.clear();
    offer.header.shard = {};
    offer.payload_bytes = offer.header.payload_bytes();
    CHECK(encode(offer).size() == bytes.size() - tail.size());

    const auto with = [&](std::size_t from_end, std::uint8_t value, Errc code = Errc::peer) {
        auto changed = bytes;
        changed[changed.size() - from_end] = static_cast<std::byte>(value);
        const auto refused = decode_offer(changed, 2);
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code == code);
        return refused.error().message;
    };
    CHECK(with(36, 9, Errc::bad_input) == "layer kind 9 is offered, known here: 0 to 2");
    CHECK(with(35, 0).find("layer 0: window of kind swa is 0") != std::string::npos);
    CHECK(with(35, 5).find("bytes, its header makes") != std::string::npos);
    CHECK(with(40, 3) == "OFFER is malformed");
    CHECK(with(12, 2).find("tp_rank is 2") != std::string::npos);
    CHECK(with(4, 2).find("head_count is 2") != std::string::npos);
}

TEST_CASE("rotation, kept tokens and the axes head and tensor, of any layer and part, need version 2") {
    kv::Scheme quantized;
    quantized.codec = "int8";
    quantized.params = {quant::Axis::token, 0, true, kv::DType::f16};
    const auto check = [](std::uint16_t version, auto change, kv::Scheme scheme) {
        change(scheme);
        for (const kv::PartId part : {kv::PartId::k, kv::PartId::v}) {
            Offer offer = example_offer();
            offer.header.schemes(part).back() = scheme;
            const Status checked = kv::check_header(offer.header);
            REQUIRE_MESSAGE(checked, checked.error().message);
            offer.payload_bytes = offer.header.payload_bytes();
            CHECK(protocol_version_of(offer.header) == version);
            const auto decoded = decode_offer(encode(offer), version);
            REQUIRE_MESSAGE(decoded, decoded.error().message);
            CHECK(decoded->header.schemes(part) == offer.header.schemes(part));
        }
    };
    check(
        1, [](kv::Scheme&) {}, quantized);
    check(
        1,
        [](kv::Scheme& s) {
            s.params = {quant::Axis::channel, 1, true, kv::DType::f16};
        },
        quantized);
    check(
        2, [](kv::Scheme& s) { s.params.axis = quant::Axis::head; }, quantized);
    check(
        2, [](kv::Scheme& s) { s.params.axis = quant::Axis::tensor; }, quantized);
    check(
        2, [](kv::Scheme& s) { s.params.hadamard = true; }, quantized);
    check(
        2, [](kv::Scheme& s) { s.sinks = 1; }, quantized);
    check(
        2, [](kv::Scheme& s) { s.window = 1; }, quantized);
}

TEST_CASE("reasons are one line and keep their code") {
    const auto reason = decode_reason(encode(Error{Errc::bad_input, "a.h5: bad\nline\x1b[31m"}));
    REQUIRE(reason);
    CHECK(reason->code == Errc::bad_input);
    CHECK(reason->message == "a.h5: bad?line?[31m");
    CHECK(decode_reason(encode(Error{Errc::peer, std::string(10000, 'x')}))->message.size() == 4096);
    auto bytes = encode(Error{Errc::usage, "x"});
    bytes[0] = std::byte{0};  // "success" is not a reason
    CHECK_FALSE(decode_reason(bytes));
}

TEST_CASE("HELLO of a later version may be longer") {
    Hello hello;
    hello.min_version = 2;
    hello.max_version = 9;
    hello.program = "x";
    auto bytes = encode(hello);
    bytes.resize(bytes.size() + 40);
    const auto decoded = decode_hello(bytes);
    REQUIRE(decoded);
    CHECK(decoded->min_version == 2);
    CHECK(decoded->max_version == 9);
    for (std::size_t n = 0; n < bytes.size() - 40; ++n) CHECK_FALSE(decode_hello(std::span(bytes).first(n)));
}

TEST_CASE("an OFFER of version 3 says when logits come, and which state it is") {
    Offer offer = example_offer();
    CHECK(protocol_version_of(offer.header) == 1);
    offer.state_key[0] = 0x5A;
    offer.state_key[31] = 0xA5;
    CHECK(protocol_version_of(offer.header) == 1);  // an earlier peer does without
    CHECK(encode(offer) == encode(example_offer()));
    const auto with_logits = encode(offer, 3);
    const auto kept = decode_offer(with_logits, 3);
    REQUIRE_MESSAGE(kept, kept.error().message);
    CHECK_FALSE(kept->header.late_logits);
    CHECK(kept->state_key == offer.state_key);
    CHECK(kept->header.sequences[0].logits == offer.header.sequences[0].logits);
    for (kv::Sequence& sequence : offer.header.sequences) sequence.logits.clear();
    offer.header.late_logits = true;
    CHECK(protocol_version_of(offer.header) == 3);
    auto bytes = encode(offer, 3);
    const auto decoded = decode_offer(bytes, 3);
    REQUIRE_MESSAGE(decoded, decoded.error().message);
    CHECK(decoded->header.late_logits);
    CHECK(decoded->state_key == offer.state_key);
    CHECK(encode(*decoded, 3) == bytes);

    // As hetero-wire(5) gives the end of the payload: no shapes, the whole state, flags, key.
    std::vector<std::uint8_t> expected = {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x5A};
    expected.resize(expected.size() + 31);
    expected.back() = 0xA5;
    const auto tail = std::as_bytes(std::span(expected));
    CHECK(std::equal(tail.begin(), tail.end(), bytes.end() - static_cast<std::ptrdiff_t>(tail.size())));

    for (std::size_t n = 0; n < bytes.size(); ++n) CHECK_FALSE(decode_offer(std::span(bytes).first(n), 3));
    CHECK_FALSE(decode_offer(bytes, 2));
    CHECK_FALSE(decode_offer(encode(offer, 2), 3));
    for (const std::uint8_t flags : {0x02, 0x80, 0xFF}) {
        auto odd = bytes;
        odd[odd.size() - 33] = static_cast<std::byte>(flags);
        CHECK_FALSE(decode_offer(odd, 3));
    }
    auto both = with_logits;  // logits now and later
    both[both.size() - 33] = std::byte{1};
    CHECK_FALSE(decode_offer(both, 3));
    bytes.push_back(std::byte{0});
    CHECK_FALSE(decode_offer(bytes, 3));
}

TEST_CASE("the key of a state knows neither its logits nor its chunks, and everything else of its header") {
    const kv::Header header = example_offer().header;
    const Digest key = state_key(header);
    kv::Header other = header;
    other.sequences[0].logits[0] += 1;
    other.sequences[1].logits.clear();
    other.tokens_per_chunk *= 2;
    CHECK(state_key(other) == key);
    const auto differs = [&](auto change) {
        kv::Header changed = header;
        change(changed);
        return state_key(changed) != key;
    };
    CHECK(differs([](kv::Header& h) { h.sequences[0].tokens[3] ^= 1; }));
    CHECK(differs([](kv::Header& h) { h.sequences[0].pending_token = 7; }));
    CHECK(differs([](kv::Header& h) { h.sequences.pop_back(); }));
    CHECK(differs([](kv::Header& h) { h.k_schemes[0].codec = "bf16"; }));
    CHECK(differs([](kv::Header& h) { h.identity.weights_digest[5] ^= 1; }));
    CHECK(differs([](kv::Header& h) { h.identity.rope_theta = 1e6; }));
    CHECK(differs([](kv::Header& h) { h.provenance[0].what += "x"; }));
}

TEST_CASE("ACCEPT says which pieces are held, from version 3 on") {
    const Accept accept{7, {{0, {0x11223344}}, {5, {1, 2}}}};
    // As hetero-wire(5) gives the payload.
    const std::vector<std::uint8_t> expected = {7, 0, 0, 0, 0, 0, 0, 0, 2, 0,    0,    0,    0,    0, 0, 0, 0, 0, 0,
                                                0, 1, 0, 0, 0, 0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11, 5, 0, 0, 0, 0, 0,
                                                0, 0, 2, 0, 0, 0, 0, 0, 0, 0,    1,    0,    0,    0, 2, 0, 0, 0};
    auto bytes = encode(accept, 3);
    const auto golden = std::as_bytes(std::span(expected));
    REQUIRE(bytes.size() == golden.size());
    CHECK(std::equal(golden.begin(), golden.end(), bytes.begin()));
    const auto decoded = decode_accept(bytes, 3, 7);
    REQUIRE_MESSAGE(decoded, decoded.error().message);
    CHECK(decoded->layers == 7);
    CHECK(decoded->held == accept.held);
    CHECK_FALSE(decode_accept(bytes, 3, 6));  // a piece that is none
    CHECK_FALSE(decode_accept(bytes, 2, 7));
    for (std::size_t n = 0; n < bytes.size(); ++n) CHECK_FALSE(decode_accept(std::span(bytes).first(n), 3, 7));
    for (const std::uint16_t version : {1, 2}) {
        CHECK(encode(accept, version) == encode_credit(7));
        CHECK(decode_accept(encode_credit(7), version, 100)->held.empty());
    }
    const auto refused = [](const std::vector<HeldPieces>& held) {
        return !decode_accept(encode(Accept{1, held}, 3), 3, 1000);
    };
    CHECK_FALSE(refused({{0, {1}}, {1, {1}}}));
    CHECK(refused({{0, {1, 2}}, {1, {1}}}));  // overlap
    CHECK(refused({{5, {1}}, {1, {1}}}));     // out of order
    CHECK(refused({{5, {}}}));                // nothing
    CHECK(refused({{~0ULL, {1, 2}}}));
    bytes.push_back(std::byte{0});
    CHECK_FALSE(decode_accept(bytes, 3, 7));
    std::mt19937 random(9);
    bytes.pop_back();
    for (int i = 0; i < 3000; ++i) {
        auto damaged = bytes;
        for (int k = 0; k < 2; ++k) damaged[random() % damaged.size()] = static_cast<std::byte>(random());
        const auto any = decode_accept(damaged, 3, 7);
        if (!any) CHECK(any.error().code == Errc::peer);
    }
}

TEST_CASE("KEEP and COMMIT") {
    CHECK(encode_keep(513) == encode_credit(513));
    CHECK(*decode_keep(encode_keep(513)) == 513);
    CHECK_FALSE(decode_keep(encode_keep(0)));
    CHECK_FALSE(decode_keep(std::vector<std::byte>(7)));
    CHECK_FALSE(decode_keep(std::vector<std::byte>(9)));

    Commit commit;
    commit.root[0] = 9;
    CHECK(encode(commit) == encode_root(commit.root));
    CHECK(decode_commit(encode(commit), 0)->root == commit.root);
    CHECK_FALSE(decode_commit(encode(commit), 1));
    commit.logits = {{1.5F, -2}, {}, {3}};
    auto bytes = encode(commit);
    const auto decoded = decode_commit(bytes, 3);
    REQUIRE_MESSAGE(decoded, decoded.error().message);
    CHECK(decoded->root == commit.root);
    CHECK(decoded->logits == commit.logits);
    CHECK(decoded->pending_tokens == std::vector<std::int32_t>{-1, -1, -1});
    commit.pending_tokens = {7, -1};
    const auto chosen = decode_commit(encode(commit), 3);
    REQUIRE(chosen);
    CHECK(chosen->pending_tokens == std::vector<std::int32_t>{7, -1, -1});
    CHECK_FALSE(decode_commit(bytes, 0));
    CHECK_FALSE(decode_commit(bytes, 2));
    CHECK_FALSE(decode_commit(bytes, 4));
    for (std::size_t n = 0; n < bytes.size(); ++n) CHECK_FALSE(decode_commit(std::span(bytes).first(n), 3));
    for (std::size_t i = 32; i < bytes.size(); ++i) {  // a count of any size takes no memory that is not there
        auto damaged = bytes;
        damaged[i] = std::byte{0xFF};
        const auto any = decode_commit(damaged, 3);
        if (!any) CHECK(any.error().code == Errc::peer);
    }
    const std::vector<std::uint8_t> end = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0x40};  // one, 3.0
    const auto tail = std::as_bytes(std::span(end));
    CHECK(std::equal(tail.begin(), tail.end(), bytes.end() - static_cast<std::ptrdiff_t>(tail.size())));
}
