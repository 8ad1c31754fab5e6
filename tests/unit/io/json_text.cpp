#include "io/json_text.h"

#include <doctest/doctest.h>

#include <string>

using namespace hetero;

namespace {

std::string nested(int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']');
}

Error refused(std::string_view text) {
    const auto json = io::parse_json(text, "a.json");
    REQUIRE_FALSE(json);
    CHECK(json.error().message.starts_with("a.json: "));
    CHECK(json.error().message.find('\n') == std::string::npos);
    return json.error();
}

}  // namespace

TEST_CASE("nesting is bounded before anything is parsed") {
    CHECK(io::parse_json(nested(io::max_json_depth), "a.json"));
    for (const int depth : {io::max_json_depth + 1, 1000000}) {
        const Error error = refused(nested(depth));
        CHECK(error.code == Errc::bad_input);
        CHECK(error.message.find(std::to_string(depth) + " levels deep") != std::string::npos);
    }
    // Brackets in strings do not count, not even after an escaped quote; braces do.
    CHECK(io::parse_json("[\"\\\"" + std::string(1000, '[') + "\"]", "a.json"));
    std::string objects;
    for (int i = 0; i < 100; ++i) objects += "{\"a\":";
    CHECK(refused(objects).message.find("100 levels") != std::string::npos);
    // Closing first must not make room.
    CHECK(refused(std::string(1000, ']') + nested(1000)).code == Errc::bad_input);
}

TEST_CASE("what is not JSON is refused in printable words") {
    for (const char* text : {"", "{", "[1,]", "nul", "\"\xff\"", "\x1b[31m", "[1] [2]"})
        CHECK(refused(text).code == Errc::bad_input);
    CHECK(refused("\x1b[31m").message.find('\x1b') == std::string::npos);
}
