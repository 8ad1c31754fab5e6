#include "base/hash.h"

#include <isa-l/crc.h>
#include <nettle/sha2.h>

#include <algorithm>

namespace hetero {

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
    // ISA-L's crc32_iscsi works on the raw register and takes an int length: invert around it, feed it in pieces.
    constexpr std::size_t piece = 1U << 30;
    std::uint32_t state = ~crc;
    while (!bytes.empty()) {
        const std::size_t n = std::min(bytes.size(), piece);
        auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));  // only read by ISA-L
        state = crc32_iscsi(data, static_cast<int>(n), state);
        bytes = bytes.subspan(n);
    }
    return ~state;
}

std::string to_hex(const Digest& digest) {
    constexpr char digits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * digest.size());
    for (std::uint8_t byte : digest) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

bool from_hex(std::string_view hex, Digest& digest) noexcept {
    if (hex.size() != 2 * digest.size()) return false;
    auto nibble = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
    for (std::size_t i = 0; i < digest.size(); ++i) {
        const int high = nibble(hex[2 * i]);
        const int low = nibble(hex[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        digest[i] = static_cast<std::uint8_t>(high << 4 | low);
    }
    return true;
}

struct Sha256::Impl {
    sha256_ctx context;
};

Sha256::Sha256() : impl_(new Impl) { sha256_init(&impl_->context); }
Sha256::~Sha256() { delete impl_; }

Sha256& Sha256::update(std::span<const std::byte> bytes) {
    sha256_update(&impl_->context, bytes.size(), reinterpret_cast<const std::uint8_t*>(bytes.data()));
    return *this;
}

Sha256& Sha256::update(std::string_view text) { return update(std::as_bytes(std::span(text))); }

Digest Sha256::finish() {
    Digest digest;
    sha256_digest(&impl_->context, digest.size(), digest.data());
    return digest;
}

Digest sha256(std::string_view text) { return Sha256().update(text).finish(); }

}  // namespace hetero
