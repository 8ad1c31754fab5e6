// Copies of the tiny models with one thing changed.
#pragma once
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "model/model.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace hetero::test {

inline std::string load_error(const std::string& path) {
    const auto model = model::Model::load(path);
    REQUIRE_FALSE(model.has_value());
    CHECK(model.error().message.find('\n') == std::string::npos);
    return model.error().message;
}

// A folder like testdata/<relative>, its config.json changed by `edit`; everything else is linked.
inline void copy_folder(const TempDir& folder, const std::string& relative,
                        const std::function<void(nlohmann::json&)>& edit) {
    namespace fs = std::filesystem;
    for (const auto& entry : fs::directory_iterator(testdata(relative))) {
        const std::string name = entry.path().filename().string();
        if (name.ends_with(".json") && name.starts_with("config")) continue;
        fs::create_symlink(entry.path(), fs::path(folder.path()) / name);
    }
    auto config = nlohmann::json::parse(read_file(testdata(relative + "/config.json")));
    edit(config);
    folder.write("config.json", config.dump(1));
}

// The value of a GGUF key: 8 bytes of length, the key, 4 of type, then this offset.
inline std::size_t gguf_value(const std::string& bytes, std::string_view key) {
    std::string entry(8, '\0');
    const std::uint64_t length = key.size();
    std::memcpy(entry.data(), &length, 8);
    entry += key;
    const std::size_t at = bytes.find(entry);
    REQUIRE(at != std::string::npos);
    return at + entry.size() + 4;
}

template <class T>
void set_gguf(std::string& bytes, std::string_view key, T value) {
    std::memcpy(bytes.data() + gguf_value(bytes, key), &value, sizeof(value));
}

// Renames a key or a tensor to a name of the same length.
inline void rename_gguf(std::string& bytes, std::string_view from, std::string_view to) {
    REQUIRE(from.size() == to.size());
    const std::size_t at = bytes.find(from);
    REQUIRE(at != std::string::npos);
    bytes.replace(at, from.size(), to);
}

}  // namespace hetero::test
