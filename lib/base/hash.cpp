#include "base/hash.h"

#include <isa-l/crc.h>
#include <nettle/sha2.h>

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hetero {
namespace {

#if defined(__x86_64__)
__attribute__((target("avx"))) void clear_upper_halves() noexcept { _mm256_zeroupper(); }
#endif

// ISA-L leaves bits in the upper halves of vector registers. Until they are cleared, code without AVX that follows in
// the thread takes several times as long on some CPUs (4 x on Zen 5).
void end_wide_vectors() noexcept {
#if defined(__x86_64__)
    static const bool has_them = __builtin_cpu_supports("avx") != 0;
    if (has_them) clear_upper_halves();
#endif
}

}  // namespace

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
    end_wide_vectors();
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
    auto nibble = [](char c) {
        if (c >= '0' && c <= '9') return c - '0';
        const char lower = static_cast<char>(c | 0x20);
        return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
    };
    Digest parsed{};
    for (std::size_t i = 0; i < parsed.size(); ++i) {
        const int high = nibble(hex[2 * i]);
        const int low = nibble(hex[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        parsed[i] = static_cast<std::uint8_t>(high << 4 | low);
    }
    digest = parsed;
    return true;
}

struct Sha256::Impl {
    sha256_ctx context;
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) { sha256_init(&impl_->context); }
Sha256::~Sha256() = default;

Sha256& Sha256::update(std::span<const std::byte> bytes) {
    if (bytes.empty()) return *this;  // its data() may be null, which nettle would hand to memcpy
    sha256_update(&impl_->context, bytes.size(), reinterpret_cast<const std::uint8_t*>(bytes.data()));
    return *this;
}

Sha256& Sha256::update(std::string_view text) { return update(std::as_bytes(std::span(text))); }

Digest Sha256::finish() {
    Digest digest;
    sha256_digest(&impl_->context, digest.size(), digest.data());  // also starts a new one
    return digest;
}

Digest sha256(std::string_view text) { return Sha256().update(text).finish(); }

}  // namespace hetero
