// Numbers are read and written the same where the locale has a decimal comma.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <stdlib.h>

#include <clocale>
#include <cstdio>

#include "base/config.h"
#include "base/units.h"
#include "support/skip.h"
#include "support/temp_dir.h"

using namespace hetero;

namespace {

// A locale with a decimal comma: an installed one, or one compiled into `folder`.
bool use_comma_locale(const test::TempDir& folder) {
    for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8"}) {
        if (std::setlocale(LC_ALL, name) != nullptr) return true;
    }
    const std::string command =
        fmt::format("localedef -i de_DE -f UTF-8 '{}/de_DE.UTF-8' >/dev/null 2>&1", folder.path());
    if (std::system(command.c_str()) != 0) return false;
    ::setenv("LOCPATH", folder.path().c_str(), 1);
    return std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
}

struct BackToC {
    ~BackToC() {
        std::setlocale(LC_ALL, "C");
        ::unsetenv("LOCPATH");
    }
};

}  // namespace

TEST_CASE("a decimal comma in the locale changes nothing") {
    const test::TempDir folder;
    const BackToC back_to_c;
    if (!use_comma_locale(folder)) {
        test::note_skip("no locale with a decimal comma, and localedef could not make one");
        return;
    }
    char probe[16];
    std::snprintf(probe, sizeof probe, "%.1f", 1.5);
    REQUIRE(std::string(probe) == "1,5");

    CHECK(parse_finite("0.01").value() == 0.01);
    CHECK_FALSE(parse_finite("0,01").has_value());
    CHECK(parse_duration_s("1.5s").value() == 1.5);
    CHECK_FALSE(parse_duration_s("1,5s").has_value());
    CHECK(format_bytes(1536) == "1.5 KiB");

    const std::string path = folder.write("hetero.toml", "eps = 0.01\nscale = 1e-5\n");
    const std::vector<std::string_view> keys{"eps", "scale"};
    const auto config = Config::load({"kv-verify", keys, {}}, path);
    REQUIRE_MESSAGE(config.has_value(), config.error().message);
    REQUIRE(config->find("eps") != nullptr);
    CHECK(config->find("eps")->values == std::vector<std::string>{"0.01"});
    CHECK(parse_finite(config->find("scale")->values.front()).value() == 1e-5);
}
