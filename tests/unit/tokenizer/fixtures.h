// Golden lines, and the real model where it is there.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "support/golden.h"
#include "support/skip.h"
#include "support/temp_dir.h"
#include "tokenizer/tokenizer.h"

namespace hetero::test {

inline std::vector<nlohmann::json> jsonl(const std::string& relative) {
    std::vector<nlohmann::json> lines;
    std::istringstream text(read_file(testdata(relative)));
    for (std::string line; std::getline(text, line);)
        if (!line.empty()) lines.push_back(nlohmann::json::parse(line));
    return lines;
}

inline std::string unhex(const std::string& hex) {
    std::string out;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
        out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    return out;
}

// The bytes a golden line was made from.
inline std::string input_of(const nlohmann::json& line) {
    return line.contains("input_hex") ? unhex(line["input_hex"]) : line["text"].get<std::string>();
}

inline std::shared_ptr<const Tokenizer> load_folder(const std::string& folder) {
    auto tokenizer = Tokenizer::from_folder(folder);
    REQUIRE_MESSAGE(tokenizer.has_value(), (tokenizer ? "" : tokenizer.error().message));
    return *tokenizer;
}

inline std::shared_ptr<const Tokenizer> load_gguf(const std::string& path) {
    auto file = io::GgufFile::open(path);
    REQUIRE_MESSAGE(file.has_value(), (file ? "" : file.error().message));
    auto tokenizer = Tokenizer::from_gguf(**file);
    REQUIRE_MESSAGE(tokenizer.has_value(), (tokenizer ? "" : tokenizer.error().message));
    return *tokenizer;
}

inline std::string model_path() {
    const char* cache = std::getenv("HETERO_CACHE");
    const char* home = std::getenv("HOME");
    const std::string folder = cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache/hetero";
    return folder + "/SmolLM2-135M-Instruct.Q4_1.gguf";
}

// SmolLM2's tokenizer; nullptr (and the test program reports a skip) where the model is not in the cache.
inline std::shared_ptr<const Tokenizer> smollm2() {
    static std::shared_ptr<const Tokenizer> tokenizer;
    if (tokenizer == nullptr) {
        if (!std::filesystem::exists(model_path())) {
            note_skip("the model is not there: " + model_path());
            return nullptr;
        }
        tokenizer = load_gguf(model_path());
    }
    return tokenizer;
}

}  // namespace hetero::test
