// Sound profiles with bytes changed, cut out or put in: each is read or refused in one line. With a key misspelt:
// refused, and the nearest one named.
#include <random>

#include "base/toml.h"
#include "hw/profile.h"
#include "support/golden.h"
#include "support/misspelt.h"
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

hw::ProfileTexts recorded_profile() {
    const Recording root;
    write_host(root);
    hw::ProbeOptions options;
    options.root = root.path();
    return profile(options);
}

}  // namespace

TEST_CASE("damaged profiles are read or refused") {
    const hw::ProfileTexts texts = recorded_profile();
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

TEST_CASE("any key misspelt is refused, and the nearest one named") {
    const hw::ProfileTexts texts = recorded_profile();
    const auto fleet = read_text_file(testdata("hw/mixed-fleet.toml"), 1U << 20, "fleet");
    REQUIRE(fleet.has_value());
    std::size_t slips = 0, found = 0;
    const auto look = [&](const std::string& sound, const char* before, const char* after) {
        REQUIRE(hw::parse_profile(sound, "sound").has_value());
        for (const auto& [key, text] : misspelt(sound, before, after, 8)) {
            CAPTURE(key);
            const auto result = hw::parse_profile(text, "slip");
            REQUIRE_FALSE(result.has_value());
            CHECK(result.error().code == Errc::bad_input);
            CHECK(result.error().message.find("; the nearest one is '") != std::string::npos);
            ++slips;
            if (result.error().message.find("nearest one is '" + key + "'") != std::string::npos) ++found;
        }
    };
    look(texts.json, "\"", "\": ");
    look(texts.toml, "\n", " = ");
    look(*fleet, "\n", " = ");
    CHECK(slips > 200);
    CHECK(found > slips * 9 / 10);  // some slips are as near to another key
}

TEST_CASE("deep nesting is refused") {
    const std::string many(100000, '[');
    CHECK_FALSE(hw::parse_profile("{\"links\": " + many, "deep").has_value());
    CHECK_FALSE(hw::parse_profile("links = " + many, "deep").has_value());
    CHECK_FALSE(hw::parse_profile(std::string(100000, '{'), "deep").has_value());
}
