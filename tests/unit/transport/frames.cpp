#include "transport/frames.h"

#include <doctest/doctest.h>

#include <random>

#include "base/hash.h"
#include "transport/wire_bytes.h"

using namespace hetero;
using namespace hetero::transport;

namespace {

FrameHeader example() {
    FrameHeader header;
    header.kind = FrameKind::chunk;
    header.session = 0x1122334455667788;
    header.epoch = 1;
    header.seq = 7;
    header.sequence = 2;
    header.layer = 29;
    header.part = kv::PartId::v;
    header.array = Array::scale;
    header.chunk = 3;
    header.slot = 4097;
    header.length = 384;
    header.payload_crc = 0xE3069283;
    header.ack = 5;
    return header;
}

// A valid header with one field overwritten: the checksum is right, the content is not.
template <class T>
HeaderBytes with(const FrameHeader& header, std::size_t offset, T value) {
    HeaderBytes bytes = encode_frame(header);
    store_le(bytes.data() + offset, value);
    store_le(bytes.data() + 60, crc32c({bytes.data(), 60}));
    return bytes;
}

}  // namespace

TEST_CASE("the 64 bytes are those of hetero-wire(5)") {
    const std::uint8_t golden[60] = {
        0x48, 0x4b, 0x56, 0x4d, 0x01, 0x00, 0x07, 0x00, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22,
        0x11, 0x01, 0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x1d, 0x00,
        0x01, 0x01, 0x03, 0x00, 0x00, 0x00, 0x01, 0x10, 0x00, 0x00, 0x80, 0x01, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x83, 0x92, 0x06, 0xe3, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    };
    const HeaderBytes bytes = encode_frame(example());
    for (std::size_t i = 0; i < 60; ++i) CHECK_MESSAGE(std::to_integer<int>(bytes[i]) == golden[i], "byte ", i);
    // The checksum's own four bytes; its algorithm is tested against RFC 3720 in base.
    CHECK(load_le<std::uint32_t>(bytes.data() + 60) == 0x09807E37U);
    const auto decoded = decode_frame(bytes);
    REQUIRE(decoded);
    CHECK(*decoded == example());
}

TEST_CASE("every flipped bit is noticed") {
    const HeaderBytes bytes = encode_frame(example());
    for (std::size_t bit = 0; bit < 512; ++bit) {
        HeaderBytes damaged = bytes;
        damaged[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
        CHECK_FALSE(decode_frame(damaged));
    }
}

TEST_CASE("headers that no peer of this version sends are refused") {
    const FrameHeader chunk = example();
    CHECK_FALSE(decode_frame(with<std::uint8_t>(chunk, 6, 0)));
    CHECK_FALSE(decode_frame(with<std::uint8_t>(chunk, 6, 18)));
    CHECK_FALSE(decode_frame(with<std::uint8_t>(chunk, 7, 1)));       // flags
    CHECK_FALSE(decode_frame(with<std::uint32_t>(chunk, 56, 1)));     // reserved
    CHECK_FALSE(decode_frame(with<std::uint8_t>(chunk, 30, 2)));      // part
    CHECK_FALSE(decode_frame(with<std::uint8_t>(chunk, 31, 5)));      // array
    CHECK_FALSE(decode_frame(with<std::uint32_t>(chunk, 36, 8192)));  // slot
    CHECK_FALSE(decode_frame(with<std::uint64_t>(chunk, 40, 0)));     // a chunk without bytes
    CHECK_FALSE(decode_frame(with<std::uint64_t>(chunk, 40, ~0ULL)));
    CHECK_FALSE(decode_frame(with<std::uint16_t>(chunk, 4, 0)));  // version
    CHECK_FALSE(decode_frame(with<std::uint16_t>(chunk, 4, 2)));

    FrameHeader ack;
    ack.kind = FrameKind::ack;
    CHECK(decode_frame(encode_frame(ack)));
    CHECK_FALSE(decode_frame(with<std::uint64_t>(ack, 40, 1)));  // ACK has no payload
    CHECK_FALSE(decode_frame(with<std::uint32_t>(ack, 32, 1)));  // and names no chunk
    FrameHeader offer;
    offer.kind = FrameKind::offer;
    CHECK(decode_frame(with<std::uint64_t>(offer, 40, max_offer_bytes)));
    CHECK_FALSE(decode_frame(with<std::uint64_t>(offer, 40, max_offer_bytes + 1)));
    for (const FrameKind kind : {FrameKind::accept, FrameKind::commit}) {
        offer.kind = kind;
        CHECK(decode_frame(with<std::uint64_t>(offer, 40, max_offer_bytes)));
    }
    offer.kind = FrameKind::keep;
    CHECK(decode_frame(with<std::uint64_t>(offer, 40, 8)));
    CHECK_FALSE(decode_frame(with<std::uint64_t>(offer, 40, max_offer_bytes)));
    FrameHeader probe;
    probe.kind = FrameKind::probe;
    CHECK(decode_frame(with<std::uint64_t>(probe, 40, max_probe_bytes)));
    CHECK_FALSE(decode_frame(with<std::uint64_t>(probe, 40, max_probe_bytes + 1)));
}

TEST_CASE("HELLO, REJECT and ABORT of other versions are understood") {
    for (const FrameKind kind : {FrameKind::hello, FrameKind::reject, FrameKind::abort}) {
        FrameHeader header;
        header.kind = kind;
        header.version = 3;
        const auto decoded = decode_frame(encode_frame(header));
        REQUIRE(decoded);
        CHECK(decoded->version == 3);
    }
}

TEST_CASE("noise is never a frame") {
    std::mt19937 random(1);
    for (int i = 0; i < 20000; ++i) {
        HeaderBytes bytes;
        for (std::byte& b : bytes) b = static_cast<std::byte>(random());
        CHECK_FALSE(decode_frame(bytes));
    }
}
