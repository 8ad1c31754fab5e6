// CRC-32C of device memory.
#include "base/hash.h"
#include "conformance/kernels/inputs.h"
#include "device.h"

using namespace hetero;
using namespace hetero::test;

TEST_CASE("checksums are those of the host, of any length at any address") {
    on_device([](const Device& device) {
        Random random(5);
        std::vector<std::byte> x(200'003);
        for (std::byte& byte : x) byte = static_cast<std::byte>(random.bits());
        const auto dx = device.upload(x);
        const auto crc = device.upload(std::vector<std::uint32_t>{0xFFFFFFFFU});
        const auto check_range = [&](std::size_t begin, std::size_t n) {
            CAPTURE(begin);
            CAPTURE(n);
            check(device.ops.crc32c(device.stream, dx.get() + begin, n, crc));
            CHECK(crc.read()[0] == crc32c(std::span(x).subspan(begin, n)));
        };
        for (std::size_t n = 0; n <= 2 * 256 + 1; n += n < 40 ? 1 : 37) check_range(n % 5, n);
        for (const std::size_t n : {255U, 256U, 257U, 511U, 512U, 513U, 65'535U, 65'536U, 65'537U}) check_range(1, n);
        check_range(0, x.size());
        const auto known = device.upload(std::vector<char>{'1', '2', '3', '4', '5', '6', '7', '8', '9'});
        check(device.ops.crc32c(device.stream, known, 9, crc));
        CHECK(crc.read()[0] == 0xE3069283U);
    });
}
