// Little-endian numbers in byte buffers; the reader takes every length as hostile.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/hash.h"

namespace hetero::transport {

template <class T>
requires std::is_unsigned_v<T>
void store_le(std::byte* out, T value) noexcept {
    for (std::size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<std::byte>(value >> (8 * i) & 0xFF);
}
template <class T>
requires std::is_unsigned_v<T>
[[nodiscard]] T load_le(const std::byte* in) noexcept {
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i)
        value = static_cast<T>(value | static_cast<T>(static_cast<T>(std::to_integer<T>(in[i])) << (8 * i)));
    return value;
}

class ByteWriter {
public:
    template <class T>
    void number(T value) {
        const std::size_t at = bytes_.size();
        bytes_.resize(at + sizeof(T));
        store_le(bytes_.data() + at, value);
    }
    void f64(double value) { number(std::bit_cast<std::uint64_t>(value)); }
    void raw(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
    void digest(const Digest& digest) { raw(std::as_bytes(std::span(digest))); }
    void text(std::string_view text) {  // u32 length, bytes
        number(static_cast<std::uint32_t>(text.size()));
        raw(std::as_bytes(std::span(text)));
    }
    // 4-byte elements, without a count.
    template <class T>
    requires(sizeof(T) == 4) void array(const std::vector<T>& values) {
        if constexpr (std::endian::native == std::endian::little) {
            raw(std::as_bytes(std::span(values)));
        } else {
            for (const T value : values) number(std::bit_cast<std::uint32_t>(value));
        }
    }
    [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

private:
    std::vector<std::byte> bytes_;
};

// Every read that goes beyond the end clears ok() and yields zeros; nothing is allocated for what is not there.
class ByteReader {
public:
    explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
    [[nodiscard]] bool ok() const noexcept { return ok_; }
    [[nodiscard]] bool complete() const noexcept { return ok_ && bytes_.empty(); }
    [[nodiscard]] std::size_t left() const noexcept { return bytes_.size(); }

    template <class T>
    [[nodiscard]] T number() {
        const auto in = raw(sizeof(T));
        return in.empty() ? T{0} : load_le<T>(in.data());
    }
    [[nodiscard]] double f64() { return std::bit_cast<double>(number<std::uint64_t>()); }
    [[nodiscard]] bool flag() {
        const auto value = number<std::uint8_t>();
        if (value > 1) ok_ = false;
        return value == 1;
    }
    [[nodiscard]] Digest digest() {
        Digest out{};
        if (const auto in = raw(out.size()); !in.empty()) std::memcpy(out.data(), in.data(), out.size());
        return out;
    }
    [[nodiscard]] std::string text(std::size_t max_bytes = 1U << 20) {
        const std::size_t length = number<std::uint32_t>();
        if (length > max_bytes) ok_ = false;
        const auto in = raw(length);
        std::string out(in.size(), '\0');
        if (!in.empty()) std::memcpy(out.data(), in.data(), in.size());
        return out;
    }
    template <class T>
    requires(sizeof(T) == 4) [[nodiscard]] std::vector<T> array(std::uint64_t count) {
        if (count > left() / 4) ok_ = false;
        if (!ok_ || count == 0) return {};
        const auto in = raw(static_cast<std::size_t>(count) * 4);
        std::vector<T> out(static_cast<std::size_t>(count));
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::bit_cast<T>(load_le<std::uint32_t>(&in[4 * i]));
        return out;
    }
    // Empty where fewer bytes are left.
    [[nodiscard]] std::span<const std::byte> raw(std::size_t count) {
        if (!ok_ || count > bytes_.size()) {
            ok_ = false;
            return {};
        }
        const auto out = bytes_.first(count);
        bytes_ = bytes_.subspan(count);
        return out;
    }

private:
    std::span<const std::byte> bytes_;
    bool ok_ = true;
};

}  // namespace hetero::transport
