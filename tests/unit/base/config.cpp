#include "base/config.h"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <thread>

#include "support/temp_dir.h"

using namespace hetero;

namespace {

const std::vector<std::string_view> keys{"model", "threads", "kv-dtype", "eps", "json", "stop", "chunk"};
const std::vector<std::string_view> tools{"hetero-prefill", "hetero-decode", "kv-verify"};

Result<Config> load(const std::string& path) { return Config::load({"hetero-prefill", keys, tools}, path); }

struct Environment {  // set for one test
    std::string name;
    Environment(std::string variable, const char* value) : name(std::move(variable)) {
        ::setenv(name.c_str(), value, 1);
    }
    ~Environment() { ::unsetenv(name.c_str()); }
};

std::string only_value(const Config& config, std::string_view key) {
    const Setting* setting = config.find(key);
    REQUIRE_MESSAGE(setting != nullptr, key);
    REQUIRE(setting->values.size() == 1);
    return setting->values.front();
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

TEST_CASE("flag beats environment beats file beats default, and each says where it is from") {
    const test::TempDir folder;
    const std::string path = folder.write("hetero.toml", "threads = 3\nmodel = \"file.gguf\"\n\neps = 0.01\n");
    const Environment threads("HETERO_THREADS", "2"), dtype("HETERO_KV_DTYPE", "bf16"), empty("HETERO_EPS", "");
    auto config = load(path);
    REQUIRE_MESSAGE(config.has_value(), config.error().message);
    config->set_default("chunk", {"512"});
    config->set_default("threads", {"8"});
    config->set_flag("model", {"flag.gguf"});

    CHECK(only_value(*config, "model") == "flag.gguf");
    CHECK(config->find("model")->origin == Origin::flag);
    CHECK(config->find("model")->where == "--model");
    CHECK(only_value(*config, "threads") == "2");
    CHECK(config->find("threads")->origin == Origin::environment);
    CHECK(config->find("threads")->where == "HETERO_THREADS");
    CHECK(only_value(*config, "kv-dtype") == "bf16");
    CHECK(only_value(*config, "eps") == "0.01");  // an empty variable is not set
    CHECK(config->find("eps")->origin == Origin::file);
    CHECK(config->find("eps")->where == path + ":4");
    CHECK(only_value(*config, "chunk") == "512");
    CHECK(config->find("chunk")->origin == Origin::fallback);
    CHECK(config->find("stop") == nullptr);
    CHECK(config->find("no-such-key") == nullptr);
}

TEST_CASE("values of every kind become the text that a command line would have") {
    const test::TempDir folder;
    const auto config = load(folder.write(
        "c.toml",
        "threads = 1_000\neps = 1e-3\njson = true\nstop = [\"a\\n\", 'b', 3]\nmodel = 'C:\\x'\nkv_dtype = 'f16'\n"));
    REQUIRE_MESSAGE(config.has_value(), config.error().message);
    CHECK(only_value(*config, "threads") == "1000");
    CHECK(only_value(*config, "eps") == "0.001");
    CHECK(only_value(*config, "json") == "true");
    CHECK(config->find("stop")->values == std::vector<std::string>{"a\n", "b", "3"});
    CHECK(only_value(*config, "model") == "C:\\x");
    CHECK(only_value(*config, "kv-dtype") == "f16");
    CHECK(only_value(*config, "kv_dtype") == "f16");
}

TEST_CASE("a tool's own table wins over the top of the file, other tools' tables are theirs") {
    const test::TempDir folder;
    const std::string path = folder.write("c.toml",
                                          "threads = 1\neps = 0.5\n[hetero-prefill]\nthreads = 4\n[kv-verify]\ngate = "
                                          "'p99'\n[hetero_decode]\nthreads = 9\n");
    auto config = load(path);
    REQUIRE_MESSAGE(config.has_value(), config.error().message);
    CHECK(only_value(*config, "threads") == "4");
    CHECK(only_value(*config, "eps") == "0.5");
    auto other = Config::load({"hetero-decode", keys, tools}, path);
    REQUIRE_MESSAGE(other.has_value(), other.error().message);
    CHECK(only_value(*other, "threads") == "9");
}

TEST_CASE("unknown keys are refused with the nearest known one") {
    const test::TempDir folder;
    struct Case {
        const char* text;
        const char* line;
        const char* unknown;
        const char* nearest;
    };
    for (const Case& c : {Case{"thraeds = 3\n", ":1:", "'thraeds'", "'threads'"},
                          {"model = 'x'\nkvdtype = 'f16'\n", ":2:", "'kvdtype'", "'kv-dtype'"},
                          {"[hetero-prefil]\nthreads = 1\n", ":1:", "'hetero-prefil'", "'hetero-prefill'"},
                          {"[hetero-prefill]\n\nchunks = 1\n", ":3:", "'chunks'", "'chunk'"},
                          {"hetero-decode = 3\n", ":1:", "'hetero-decode'", "'hetero-decode'"}}) {
        const auto config = load(folder.write("c.toml", c.text));
        REQUIRE_MESSAGE(!config.has_value(), c.text);
        CHECK(config.error().code == Errc::usage);
        for (const char* part : {c.line, c.unknown, c.nearest, "c.toml"}) {
            CHECK_MESSAGE(contains(config.error().message, part), part, " in: ", config.error().message);
        }
    }
}

TEST_CASE("values that no option could take are refused") {
    const test::TempDir folder;
    for (const char* text :
         {"threads = 1979-05-27\n", "threads = [[1]]\n", "threads = {a = 1}\n", "stop = []\n", "[threads]\nx = 1\n"}) {
        const auto config = load(folder.write("c.toml", text));
        REQUIRE_MESSAGE(!config.has_value(), text);
        CHECK(config.error().code == Errc::usage);
        CHECK(contains(config.error().message, "c.toml:1"));
    }
    const auto twice = load(folder.write("c.toml", "kv-dtype = 'f16'\nkv_dtype = 'bf16'\n"));
    REQUIRE_FALSE(twice.has_value());
    CHECK(twice.error().code == Errc::usage);
    CHECK(contains(twice.error().message, "'kv-dtype'"));
}

TEST_CASE("files that are no TOML, or no files, are refused with place and reason") {
    const test::TempDir folder;
    const auto broken = load(folder.write("broken.toml", "threads = 3\neps = 0,01\n"));
    REQUIRE_FALSE(broken.has_value());
    CHECK(broken.error().code == Errc::bad_input);
    CHECK(contains(broken.error().message, "broken.toml:2"));
    for (const std::string& text :
         {std::string("threads = 1\nthreads = 2\n"), std::string("= 3\n"), std::string("a = \"\xFF\"\n"),
          std::string("a = '\0'\n", 8), "a = " + std::string(100'000, '['), std::string("[a")}) {
        const auto config = load(folder.write("c.toml", text));
        REQUIRE_MESSAGE(!config.has_value(), text.substr(0, 40));
        CHECK(config.error().code == Errc::bad_input);
    }
    const auto missing = load(folder / "none.toml");
    REQUIRE_FALSE(missing.has_value());
    CHECK(contains(missing.error().message, "none.toml"));
    CHECK(contains(missing.error().message, "No such file"));
    CHECK_FALSE(load(folder.path()).has_value());
    CHECK_FALSE(load(folder.write("big.toml", std::string((1U << 20) + 1, '\n'))).has_value());
    CHECK(load("").has_value());
}

TEST_CASE("a pipe can be a configuration file") {
    const test::TempDir folder;
    const std::string pipe = folder / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    std::thread writer([&] { std::ofstream(pipe) << "threads = 5\n"; });
    const auto config = load(pipe);
    writer.join();
    REQUIRE_MESSAGE(config.has_value(), config.error().message);
    CHECK(only_value(*config, "threads") == "5");
}

TEST_CASE("what is dumped can be read again and gives the same settings") {
    const test::TempDir folder;
    auto config = load("");
    REQUIRE(config.has_value());
    config->set_flag("model", {"quo\"te\\ \n\ttab \x7F é"});
    config->set_flag("threads", {"007"});
    config->set_flag("eps", {"-0.5"});
    config->set_flag("json", {"true"});
    config->set_flag("stop", {"a", "12", "-", "1e5", "0.", ".5", "99999999999999999999"});
    const std::string text = config->dump();
    CHECK(contains(text, "eps = -0.5  # --eps\n"));
    CHECK(contains(text, "# chunk is not set\n"));
    const auto again = load(folder.write("dump.toml", text));
    REQUIRE_MESSAGE(again.has_value(), again.error().message, "\n", text);
    for (const std::string_view key : keys) {
        const Setting* first = config->find(key);
        const Setting* second = again->find(key);
        REQUIRE_MESSAGE((first == nullptr) == (second == nullptr), key);
        if (first != nullptr) CHECK_MESSAGE(first->values == second->values, text);
    }
}

TEST_CASE("nearest names") {
    const std::vector<std::string_view> known{"epsilon", "steps", "strict", "gate"};
    CHECK(nearest_name("espilon", known) == "epsilon");
    CHECK(nearest_name("step", known) == "steps");
    CHECK(nearest_name("gaet", known) == "gate");
    CHECK(nearest_name("strcit", known) == "strict");
    CHECK(nearest_name("", known) == "gate");
    CHECK(nearest_name("x", {}).empty());
    // A swap of neighbours is one change, so that "ab" is nearer to "ba" than to "abcd".
    const std::vector<std::string_view> pair{"abcd", "ba"};
    CHECK(nearest_name("ab", pair) == "ba");
}

TEST_CASE("only a name that is near may have been meant") {
    const std::vector<std::string_view> known{"epsilon", "steps", "gate"};
    CHECK(meant_name("epsilom", known) == "epsilon");
    CHECK(meant_name("espilom", known) == "epsilon");
    CHECK(meant_name("gat", known) == "gate");
    CHECK(meant_name("model", known).empty());
    CHECK(meant_name("", known).empty());
    CHECK(meant_name("gate", {}).empty());
}

TEST_CASE("names in the environment") {
    CHECK(environment_name("kv-dtype") == "HETERO_KV_DTYPE");
    CHECK(environment_name("top-p") == "HETERO_TOP_P");
}
