// Bytes of GGUF files, sound ones and any damaged one.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace hetero::test {

template <class T>
std::string raw(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
}

struct GgufBytes {
    // Numbers of the format's value types.
    enum Type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

    std::uint32_t version = 3;
    std::uint64_t announced_tensors_more = 0, announced_keys_more = 0;
    std::string metadata, tensors;
    std::uint64_t n_keys = 0, n_tensors = 0;
    std::string data;
    std::size_t alignment = 32;

    static std::string text(std::string_view value) { return raw<std::uint64_t>(value.size()) + std::string(value); }
    static std::string array_of(std::uint32_t type, std::uint64_t count, std::string_view elements) {
        return raw(type) + raw(count) + std::string(elements);
    }

    GgufBytes& key(std::string_view name, std::uint32_t type, std::string_view value) {
        metadata += text(name) + raw(type) + std::string(value);
        ++n_keys;
        return *this;
    }
    // ne: innermost first, as stored.
    GgufBytes& tensor(std::string_view name, std::initializer_list<std::uint64_t> ne, std::uint32_t type,
                      std::uint64_t offset) {
        tensors += text(name) + raw(static_cast<std::uint32_t>(ne.size()));
        for (const std::uint64_t n : ne) tensors += raw(n);
        tensors += raw(type) + raw(offset);
        ++n_tensors;
        return *this;
    }

    [[nodiscard]] std::string header() const {
        return "GGUF" + raw(version) + raw(n_tensors + announced_tensors_more) + raw(n_keys + announced_keys_more) +
               metadata + tensors;
    }
    [[nodiscard]] std::size_t data_begin() const { return (header().size() + alignment - 1) / alignment * alignment; }
    [[nodiscard]] std::string bytes() const {
        std::string out = header();
        out.resize(data_begin(), '\0');
        return out + data;
    }
};

}  // namespace hetero::test
