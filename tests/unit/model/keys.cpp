#include "model/keys.h"

#include <doctest/doctest.h>

#include <string>

using namespace hetero;

TEST_CASE("a configuration nested deeper than any is refused, not printed") {
    for (const std::size_t depth : {100U, 1000000U}) {
        const std::string text =
            R"({"model_type":"llama","x":)" + std::string(depth, '[') + std::string(depth, ']') + "}";
        const auto keys = model::Keys::from_json("config.json", text);
        REQUIRE_FALSE(keys);
        CHECK(keys.error().code == Errc::bad_input);
        CHECK(keys.error().message.find("config.json: is nested") == 0);
    }
}

TEST_CASE("text of a configuration that a message shows is printable") {
    auto keys = model::Keys::from_json("config.json", R"({"a":"\u001b[31m"})");
    REQUIRE(keys);
    const auto number = keys->integer("a", 0, 9);
    REQUIRE_FALSE(number);
    CHECK(number.error().message == R"(config.json: a must be an integer from 0 to 9, found "?[31m")");
}
