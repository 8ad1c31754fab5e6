// Sound profiles with bytes changed, cut out or put in, and keys misspelt: each is read or refused in one line.
#include <random>

#include "hw/profile.h"
#include "unit/hw/support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

std::string mutate(const std::string& sound, std::mt19937& random) {
    std::string text = sound;
    static const std::string pieces[] = {"[",    "]",    "{",    "}",       "\"",
                                         "=",    ".",    "null", "-1",      "1e400",
                                         "nan",  "inf",  "'''",  "[[a]]\n", "18446744073709551616",
                                         "\\u0", "\xFF", "\0x",  "\n",      ",",
                                         "true"};
    const auto changes = 1 + random() % 4;
    for (std::uint32_t i = 0; i < changes && !text.empty(); ++i) {
        const std::size_t at = random() % text.size();
        switch (random() % 5) {
            case 0:
                text[at] = static_cast<char>(random());
                break;
            case 1:
                text.resize(at);
                break;
            case 2:
                text.erase(at, 1 + random() % 16);
                break;
            case 3:
                text.insert(at, pieces[random() % std::size(pieces)]);
                break;
            default:
                text.insert(at, text.substr(random() % text.size(), random() % 64));
        }
    }
    return text;
}

}  // namespace

TEST_CASE("damaged profiles are read or refused") {
    const Recording root;
    write_host(root);
    hw::ProbeOptions options;
    options.root = root.path();
    const hw::ProfileTexts texts = profile(options);
    std::mt19937 random(8);
    int read = 0, refused = 0;
    for (const std::string& sound : {texts.json, texts.toml}) {
        REQUIRE(hw::parse_profile(sound, "sound").has_value());
        for (int round = 0; round < 1500; ++round) {
            const std::string text = mutate(sound, random);
            const auto result = hw::parse_profile(text, "damaged");
            ++(result ? read : refused);
            if (result) continue;
            CHECK(result.error().code == Errc::bad_input);
            CHECK(result.error().message.starts_with("damaged"));
            CHECK(result.error().message.find('\n') == std::string::npos);
        }
    }
    CHECK(read > 0);
    CHECK(refused > 1000);
}

TEST_CASE("deep nesting is refused") {
    const std::string many(100000, '[');
    CHECK_FALSE(hw::parse_profile("{\"links\": " + many, "deep").has_value());
    CHECK_FALSE(hw::parse_profile("links = " + many, "deep").has_value());
    CHECK_FALSE(hw::parse_profile(std::string(100000, '{'), "deep").has_value());
}
