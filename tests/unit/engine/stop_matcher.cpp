#include "engine/stop_matcher.h"

#include <doctest/doctest.h>

using hetero::engine::StopMatcher;

namespace {

struct Outcome {
    std::string text;
    bool stopped;
    friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome run(const std::vector<std::string>& stops, const std::string& text, std::size_t piece) {
    StopMatcher matcher(stops);
    std::string shown;
    for (std::size_t at = 0; at < text.size(); at += piece) shown += matcher.push(text.substr(at, piece));
    shown += matcher.finish();
    return {shown, matcher.stopped()};
}

}  // namespace

TEST_CASE("the text before the first stop string is shown, however it is cut into pieces") {
    struct Case {
        std::vector<std::string> stops;
        std::string text;
        Outcome expected;
    };
    const Case cases[] = {
        {{}, "abc", {"abc", false}},
        {{""}, "abc", {"abc", false}},
        {{"END"}, "some text END more END", {"some text ", true}},
        {{"END"}, "some text EN", {"some text EN", false}},
        {{"END"}, "EEND", {"E", true}},
        {{"aab"}, "aaab", {"a", true}},
        {{"abab"}, "abaabab", {"aba", true}},
        {{"\n\n", "User:"}, "x\nUser:\n\n", {"x\n", true}},
        {{"bc", "abcd"}, "xabcd", {"xa", true}},
        {{"\xF0\x9F\x98\x80"}, "a\xF0\x9F\x98\x80", {"a", true}},
        {{"x"}, "x", {"", true}},
        {{"cd", "bcd"}, "abcd", {"a", true}},
    };
    for (const Case& one : cases) {
        CAPTURE(one.text);
        for (std::size_t piece = 1; piece <= one.text.size(); ++piece) {
            CAPTURE(piece);
            CHECK(run(one.stops, one.text, piece) == one.expected);
        }
    }
}

TEST_CASE("what cannot become a stop string is shown at once") {
    StopMatcher matcher({"END"});
    CHECK(matcher.push("abc") == "abc");
    CHECK(matcher.push("dE") == "d");
    CHECK(matcher.push("x") == "Ex");
    CHECK(matcher.push("EN") == "");
    CHECK(matcher.push("D, and more") == "");
    CHECK(matcher.stopped());
    CHECK(matcher.push("ignored") == "");
    CHECK(matcher.finish() == "");
}
