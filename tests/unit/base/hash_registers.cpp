// What a CRC leaves behind in vector registers.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "base/hash.h"
#include "support/skip.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

using namespace hetero;

TEST_CASE("after a CRC no upper halves of vector registers are in use, which would slow down what follows") {
#if defined(__x86_64__)
    // XINUSE: XGETBV with ECX = 1, where CPUID leaf 13, subleaf 1 says that there is one (Intel SDM, volume 1, 13.1).
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(13, 1, &a, &b, &c, &d) == 0 || (a & 4U) == 0)
        return test::note_skip("the CPU does not tell which registers are in use");
    constexpr std::uint32_t upper_halves_of_ymm = 1U << 2, upper_halves_of_zmm = 1U << 6;
    const std::vector<std::byte> bytes(100'000, std::byte{7});
    for (const std::size_t size : {1, 15, 64, 300, 4096, 100'000}) {
        CAPTURE(size);
        const std::uint32_t crc = crc32c(std::span(bytes).first(size));
        std::uint32_t in_use = 0, high = 0;
        asm volatile("xgetbv" : "=a"(in_use), "=d"(high) : "c"(1));
        CHECK((in_use & (upper_halves_of_ymm | upper_halves_of_zmm)) == 0);
        CHECK(crc != 0);
    }
#else
    test::note_skip("of x86 alone");
#endif
}
