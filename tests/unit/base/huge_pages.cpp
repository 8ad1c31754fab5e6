#include "base/huge_pages.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace hetero;

TEST_CASE("memory in huge pages is what resize() makes of it") {
    const auto is = [](std::byte value) { return [value](std::byte b) { return b == value; }; };
    std::vector<std::byte> memory;
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{5} << 20, (std::size_t{9} << 20) + 3}) {
        const std::size_t before = memory.size();
        resize_in_huge_pages(memory, bytes);
        REQUIRE(memory.size() == bytes);
        CHECK(std::all_of(memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(before), is(std::byte{7})));
        CHECK(std::all_of(memory.begin() + static_cast<std::ptrdiff_t>(before), memory.end(), is(std::byte{0})));
        std::fill(memory.begin(), memory.end(), std::byte{7});
    }
    resize_in_huge_pages(memory, 3);
    CHECK(memory == std::vector<std::byte>(3, std::byte{7}));
}
