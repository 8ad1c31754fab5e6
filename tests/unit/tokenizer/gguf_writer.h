// Writes GGUF files of metadata alone, for tests. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace hetero::test {

class GgufWriter {
public:
    void text(const std::string& key, const std::string& value) {
        head(key, 8);
        put_text(value);
    }
    void u32(const std::string& key, std::uint32_t value) {
        head(key, 4);
        put(value);
    }
    void boolean(const std::string& key, bool value) {
        head(key, 7);
        put(static_cast<std::uint8_t>(value));
    }
    void texts(const std::string& key, const std::vector<std::string>& values) {
        array(key, 8, values.size());
        for (const auto& value : values) put_text(value);
    }
    void i32s(const std::string& key, const std::vector<std::int32_t>& values) {
        array(key, 5, values.size());
        for (const auto value : values) put(value);
    }
    void f32s(const std::string& key, const std::vector<float>& values) {
        array(key, 6, values.size());
        for (const auto value : values) put(value);
    }
    [[nodiscard]] std::string bytes() const {
        GgufWriter out;
        out.body_ = "GGUF";
        out.put(std::uint32_t{3});
        out.put(std::uint64_t{0});
        out.put(count_);
        return out.body_ + body_;
    }

private:
    template <class T>
    void put(T value) {
        char raw[sizeof value];
        std::memcpy(raw, &value, sizeof value);
        body_.append(raw, sizeof value);
    }
    void put_text(const std::string& value) {
        put(static_cast<std::uint64_t>(value.size()));
        body_ += value;
    }
    void head(const std::string& key, std::uint32_t type) {
        ++count_;
        put_text(key);
        put(type);
    }
    void array(const std::string& key, std::uint32_t type, std::size_t size) {
        head(key, 9);
        put(type);
        put(static_cast<std::uint64_t>(size));
    }
    std::string body_;
    std::uint64_t count_ = 0;
};

}  // namespace hetero::test
