#include "base/hash.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

using namespace hetero;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// The definition, bit by bit: reflected polynomial 0x1EDC6F41.
std::uint32_t crc32c_by_bits(std::span<const std::byte> bytes) {
    std::uint32_t state = 0xFFFFFFFFU;
    for (const std::byte byte : bytes) {
        state ^= static_cast<std::uint32_t>(byte);
        for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1U) != 0 ? 0x82F63B78U : 0U);
    }
    return ~state;
}

std::vector<std::byte> random_bytes(std::size_t n, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes(n);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xFF);
    return bytes;
}

}  // namespace

TEST_CASE("crc32c gives the published values") {
    CHECK(crc32c(bytes_of("123456789")) == 0xE3069283U);
    CHECK(crc32c({}) == 0U);
    // RFC 3720, B.4
    CHECK(crc32c(std::vector<std::byte>(32, std::byte{0})) == 0x8A9136AAU);
    CHECK(crc32c(std::vector<std::byte>(32, std::byte{0xFF})) == 0x62A8AB43U);
    std::vector<std::byte> rising(32), falling(32);
    for (std::size_t i = 0; i < 32; ++i) {
        rising[i] = static_cast<std::byte>(i);
        falling[i] = static_cast<std::byte>(31 - i);
    }
    CHECK(crc32c(rising) == 0x46DD794EU);
    CHECK(crc32c(falling) == 0x113FDB5CU);
}

TEST_CASE("crc32c follows the definition at every length and alignment") {
    const auto bytes = random_bytes(1100, 7);
    for (std::size_t begin = 0; begin < 9; ++begin) {
        for (std::size_t length = 0; length < 1024; length += length < 80 ? 1 : 61) {
            const auto piece = std::span(bytes).subspan(begin, length);
            REQUIRE(crc32c(piece) == crc32c_by_bits(piece));
        }
    }
}

TEST_CASE("crc32c in pieces equals crc32c of the whole") {
    const auto bytes = random_bytes(1 << 20, 11);
    const std::uint32_t whole = crc32c(bytes);
    CHECK(whole == crc32c_by_bits(bytes));
    for (const std::size_t cut :
         {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{777'777}, bytes.size()}) {
        const std::uint32_t first = crc32c(std::span(bytes).first(cut));
        CHECK(crc32c(std::span(bytes).subspan(cut), first) == whole);
    }
}

TEST_CASE("sha256 gives the published values") {
    // FIPS 180-4 examples and the NIST vectors of length 0.
    CHECK(to_hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(to_hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(to_hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(to_hex(sha256(std::string(1'000'000, 'a'))) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("sha256 does not depend on how the bytes are cut, and starts anew after finish") {
    const std::string text(100'000, 'x');
    const Digest whole = sha256(text);
    for (const std::size_t piece : {1U, 63U, 64U, 65U, 4096U}) {
        Sha256 hash;
        for (std::size_t at = 0; at < text.size(); at += piece) hash.update(std::string_view(text).substr(at, piece));
        CHECK(hash.finish() == whole);
    }
    Sha256 hash;
    hash.update("something else");
    CHECK(hash.finish() != whole);
    hash.update(std::span<const std::byte>{}).update(text);
    CHECK(hash.finish() == whole);
}

TEST_CASE("hexadecimal digests") {
    const Digest digest = sha256("abc");
    Digest parsed{};
    CHECK(from_hex(to_hex(digest), parsed));
    CHECK(parsed == digest);
    CHECK(from_hex("BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD", parsed));
    CHECK(parsed == digest);

    Digest untouched{};
    CHECK_FALSE(from_hex("", untouched));
    CHECK_FALSE(from_hex(to_hex(digest).substr(1), untouched));
    CHECK_FALSE(from_hex(to_hex(digest) + "0", untouched));
    for (const char bad : {'g', '`', '@', '/', ':', ' ', '\0', '\xC1'}) {
        std::string hex = to_hex(digest);
        hex.back() = bad;
        CHECK_FALSE(from_hex(hex, untouched));
    }
    CHECK(untouched == Digest{});
}
