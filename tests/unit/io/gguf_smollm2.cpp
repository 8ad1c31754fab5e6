// The file of SmolLM2-135M-Instruct (Q4_1), whole, cut short and rewritten.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "gguf_bytes.h"
#include "io/gguf.h"
#include "support/golden.h"
#include "support/skip.h"
#include "support/temp_dir.h"

using namespace hetero;
using io::GgufFile;

namespace {

std::string model_path() {
    const char* cache = std::getenv("HETERO_CACHE");
    const char* home = std::getenv("HOME");
    const std::string folder = cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache/hetero";
    std::string path = folder + "/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (std::filesystem::exists(path)) return path;
    test::note_skip(path + " is not there (scripts/quickstart.sh fetches it)");
    return {};
}

std::size_t position_after(const std::string& bytes, std::string_view text) {
    const std::size_t at = bytes.find(test::GgufBytes::text(text));
    REQUIRE(at != std::string::npos);
    return at + 8 + text.size();
}

void check_refused(const std::string& path, std::initializer_list<std::string_view> parts) {
    const auto opened = GgufFile::open(path);
    REQUIRE_FALSE(opened.has_value());
    CHECK(opened.error().code == Errc::bad_input);
    for (const std::string_view part : parts)
        CHECK_MESSAGE(opened.error().message.find(part) != std::string::npos, part, " in: ", opened.error().message);
}

}  // namespace

TEST_CASE("the whole file") {
    const std::string path = model_path();
    if (path.empty()) return;
    const auto opened = GgufFile::open(path);
    REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
    const GgufFile& file = **opened;
    CHECK(file.names().size() == 272);
    CHECK(file.string("general.architecture").value() == "llama");
    CHECK(file.integer("llama.block_count").value() == 30);
    CHECK(file.integer("llama.context_length").value() == 8192);
    CHECK(file.number("llama.rope.freq_base").value() == 100000.0);
    CHECK(file.strings("tokenizer.ggml.tokens").value()->size() == 49152);
    CHECK(file.integers("tokenizer.ggml.token_type").value()->size() == 49152);
    CHECK(file.strings("tokenizer.ggml.merges").value()->size() == 48900);
    const io::TensorView* norm = file.find("output_norm.weight");
    REQUIRE(norm != nullptr);
    CHECK(norm->shape == std::vector<std::uint64_t>{576});
    CHECK(norm->dtype == kernels::DType::f32);
    CHECK(file.find("token_embd.weight")->shape == std::vector<std::uint64_t>{49152, 576});
}

TEST_CASE("a download that broke off") {
    const std::string path = model_path();
    if (path.empty()) return;
    const test::TempDir folder;
    const std::string cut = folder / "cut.gguf";
    std::filesystem::copy_file(path, cut);
    const auto size = std::filesystem::file_size(cut);
    const std::string whole = std::to_string(size);
    std::filesystem::resize_file(cut, size - 1);
    check_refused(cut, {"too short", std::to_string(size - 1), whole, "'output_norm.weight'"});
    std::filesystem::resize_file(cut, 60'000'000);
    check_refused(cut, {"too short", "60000000", whole, "first tensor that does not fit"});
    std::filesystem::resize_file(cut, 1'000'000);  // in the middle of the tokenizer
    check_refused(cut, {"too short", "1000000"});
    for (const std::uintmax_t length : {20U, 3U, 0U}) {
        std::filesystem::resize_file(cut, length);
        check_refused(cut, {"too short", std::to_string(length) + " bytes"});
    }
}

TEST_CASE("token types of one byte each read the same as the file's own of four") {
    const std::string path = model_path();
    if (path.empty()) return;
    std::string bytes = test::read_file(path);
    const auto original = GgufFile::open(path);
    REQUIRE(original.has_value());
    constexpr std::size_t count = 49152;

    // The array of INT32 becomes one of UINT8, what follows moves up, the data is aligned to 32 again.
    const std::size_t type_at = position_after(bytes, "tokenizer.ggml.token_type") + 4;
    REQUIRE(bytes.substr(type_at, 12) ==
            test::raw(std::uint32_t{test::GgufBytes::i32}) + test::raw<std::uint64_t>(count));
    std::string narrow;
    for (std::size_t i = 0; i < count; ++i) narrow += bytes[type_at + 12 + 4 * i];
    std::size_t infos_end = 0;  // the table's last entry is the one that ends last
    for (const std::string& name : (*original)->names()) {
        const auto n_dims = (*original)->find(name)->shape.size();
        infos_end = std::max(infos_end, position_after(bytes, name) + 4 + 8 * n_dims + 4 + 8);
    }
    const std::string data = bytes.substr((infos_end + 31) / 32 * 32);
    std::string rewritten = bytes.substr(0, type_at) + test::raw(std::uint32_t{test::GgufBytes::u8}) +
                            test::raw<std::uint64_t>(count) + narrow +
                            bytes.substr(type_at + 12 + 4 * count, infos_end - (type_at + 12 + 4 * count));
    rewritten.resize((rewritten.size() + 31) / 32 * 32, '\0');
    rewritten += data;

    const test::TempDir folder;
    const auto opened = GgufFile::open(folder.write("narrow.gguf", rewritten));
    REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
    CHECK(*(*opened)->integers("tokenizer.ggml.token_type").value() ==
          *(*original)->integers("tokenizer.ggml.token_type").value());
    CHECK(*(*opened)->strings("tokenizer.ggml.merges").value() ==
          *(*original)->strings("tokenizer.ggml.merges").value());
    REQUIRE((*opened)->names() == (*original)->names());
    for (const std::string& name : (*original)->names()) {
        const auto a = (*opened)->find(name)->bytes, b = (*original)->find(name)->bytes;
        REQUIRE_MESSAGE(std::equal(a.begin(), a.end(), b.begin(), b.end()), name);
    }
}
