// Golden arrays of testdata/golden (safetensors), read on their own so that they do not depend on the reader under
// test.
#pragma once
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace hetero::test {

// A path under testdata; absolute ones stay.
inline std::string testdata(const std::string& relative) {
    return relative.starts_with('/') ? relative : std::string(HETERO_TESTDATA) + "/" + relative;
}

inline std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    REQUIRE_MESSAGE(in.good(), "cannot open ", path);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

class Golden {
public:
    explicit Golden(const std::string& relative) : bytes_(read_file(testdata(relative))) {
        std::uint64_t header_bytes = 0;
        std::memcpy(&header_bytes, bytes_.data(), 8);
        header_ = nlohmann::json::parse(bytes_.substr(8, header_bytes));
        data_ = 8 + header_bytes;
    }
    [[nodiscard]] bool has(const std::string& name) const { return header_.contains(name); }
    [[nodiscard]] std::vector<std::size_t> shape(const std::string& name) const { return entry(name).at("shape"); }
    [[nodiscard]] std::string dtype(const std::string& name) const { return entry(name).at("dtype"); }
    template <class T>
    [[nodiscard]] std::vector<T> get(const std::string& name) const {
        const std::size_t begin = entry(name).at("data_offsets").at(0), end = entry(name).at("data_offsets").at(1);
        std::vector<T> values((end - begin) / sizeof(T));
        std::memcpy(values.data(), bytes_.data() + data_ + begin, end - begin);
        return values;
    }
    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> out;
        for (const auto& item : header_.items())
            if (item.key() != "__metadata__") out.push_back(item.key());
        return out;
    }

private:
    [[nodiscard]] const nlohmann::json& entry(const std::string& name) const {
        REQUIRE_MESSAGE(header_.contains(name), "no golden array ", name);
        return header_.at(name);
    }
    std::string bytes_;
    nlohmann::json header_;
    std::size_t data_ = 0;
};

}  // namespace hetero::test
