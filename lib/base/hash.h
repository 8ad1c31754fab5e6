// Checksums and digests. CRC-32C (RFC 3720, Castagnoli polynomial) guards bytes against damage;
// SHA-256 (FIPS 180-4) names things.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace hetero {

// CRC-32C of `bytes`; `crc` continues an earlier call's result. crc32c("123456789") = 0xE3069283.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0) noexcept;

using Digest = std::array<std::uint8_t, 32>;
[[nodiscard]] std::string to_hex(const Digest& digest);
[[nodiscard]] bool from_hex(std::string_view hex,
                            Digest& digest) noexcept;  // false unless 64 hex digits, of either case

class Sha256 {
public:
    Sha256();
    ~Sha256();
    Sha256(const Sha256&) = delete;
    Sha256& operator=(const Sha256&) = delete;
    Sha256& update(std::span<const std::byte> bytes);
    Sha256& update(std::string_view text);
    [[nodiscard]] Digest finish();  // resets: the object can be used again

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

[[nodiscard]] Digest sha256(std::string_view text);

}  // namespace hetero
