// Packed weights that are kept in a folder.
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "support.h"
#include "support/temp_dir.h"

using namespace hetero;
using namespace hetero::test;

namespace {

// A model of its own each time: sessions of one model would share their weights.
std::vector<float> run(const std::string& name, const engine::WarmFolder& warm, bool expect_warm) {
    engine::Options options;
    options.threads = 2;
    options.precision = engine::Precision::fast;
    options.warm = warm;
    const auto session = must(Session::create(tiny_model(name), options, 16));
    CHECK(session->warm() == expect_warm);
    return prefill(*session, {5, 9, 200, 31});
}

struct Log {
    Log() {
        log::set_sink([this](log::Level, std::string_view line) { lines.emplace_back(line); }, log::Level::warn);
    }
    ~Log() { log::set_sink({}, log::Level::error); }
    std::vector<std::string> lines;
};

}  // namespace

TEST_CASE("warm: the same bits from kept weights, from packed ones, and from a file that was damaged and made again") {
    for (const char* name : {"gguf/llama-q8_0.gguf", "phi3/bf16", "mixtral/bf16", "deepseek_v2/bf16"}) {
        CAPTURE(std::string(name));
        const TempDir folder;
        const auto packed = run(name, {}, false);
        CHECK(run(name, {folder.path(), false}, false) == packed);
        CHECK(folder.names().empty());  // nobody asked for it
        CHECK(run(name, {folder.path(), true}, true) == packed);
        REQUIRE(folder.names().size() == 1);
        CHECK(run(name, {folder.path(), false}, true) == packed);

        const std::string file = folder / folder.names().front();
        {
            std::fstream damaged(file, std::ios::binary | std::ios::in | std::ios::out);
            damaged.seekp(std::streamoff{2 << 20});
            damaged.put('\x7F').put('\x7F').put('\x01').put('\x02');
        }
        Log log;
        CHECK(run(name, {folder.path(), false}, false) == packed);
        REQUIRE(log.lines.size() == 1);
        CHECK(log.lines.front().find(file) != std::string::npos);
        CHECK(run(name, {folder.path(), true}, true) == packed);
        CHECK(log.lines.size() == 2);
        CHECK(run(name, {folder.path(), false}, true) == packed);
        CHECK(log.lines.size() == 2);
    }
}

TEST_CASE("warm: models of other weights and ranks of a group have files of their own") {
    const TempDir folder;
    run("gguf/llama-q8_0.gguf", {folder.path(), true}, true);
    run("gguf/qwen3-q4_0.gguf", {folder.path(), true}, true);
    CHECK(folder.names().size() == 2);
    ThreadPool pool(1);
    const auto model = tiny_model("gguf/llama-q8_0.gguf");
    const auto half = engine::PackedWeights::of(model, pool, engine::Share(1, 2), {folder.path(), true});
    CHECK(half->warm());
    CHECK(folder.names().size() == 3);
}

TEST_CASE("warm: a folder that cannot be written to is said, and no error") {
    const TempDir folder;
    const std::string file = folder.write("file", "not a folder");
    Log log;
    run("gguf/llama-q8_0.gguf", {file, true}, false);
    REQUIRE(log.lines.size() == 1);
    CHECK(log.lines.front().find("not kept") != std::string::npos);
}
