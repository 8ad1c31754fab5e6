#include "base/printable.h"

#include <doctest/doctest.h>

using namespace hetero;

TEST_CASE("text for messages is one line of printable ASCII") {
    CHECK(printable("blk.0.attn_q.weight ~") == "blk.0.attn_q.weight ~");
    CHECK(printable("a\nb\r\x1B[31m\x7F\xC3\xA9") == "a?b??[31m???");
    CHECK(printable(std::string_view("\0", 1)) == "?");
    CHECK(printable("") == "");
    CHECK(printable(std::string(101, 'x')) == std::string(100, 'x') + "...");
    CHECK(printable(std::string(100, 'x')) == std::string(100, 'x'));
    CHECK(printable("abcdef", 3) == "abc...");
}
