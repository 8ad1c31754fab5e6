#include "base/log.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace hetero;

TEST_CASE("the log is silent without a sink, and passes what is at or above the threshold") {
    CHECK_FALSE(log::enabled(log::Level::error));
    log::warn("nobody hears {}", 1);

    std::vector<std::string> heard;
    log::set_sink([&](log::Level level,
                      std::string_view text) { heard.push_back(fmt::format("{} {}", static_cast<int>(level), text)); },
                  log::Level::info);
    log::debug("{}", 1);
    log::info("{}", 2);
    log::warn("{}", 3);
    log::emit(log::Level::error, "{}", 4);
    CHECK(heard == std::vector<std::string>{"1 2", "2 3", "3 4"});
    CHECK_FALSE(log::enabled(log::Level::debug));

    log::set_sink(nullptr, log::Level::debug);
    log::warn("nobody again");
    CHECK(heard.size() == 3);
}
