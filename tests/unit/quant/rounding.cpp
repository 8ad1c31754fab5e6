// binary16 in single values, compared with a table of all f16 values made from the format's definition.
#include "kernels/api/rounding.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "support/golden.h"

namespace {

using hetero::kernels::f16_round_down;
using hetero::kernels::f16_round_up;
using hetero::kernels::f16_value;

// All finite f16 values >= 0 in order; the index is the bit pattern.
std::vector<double> nonnegative_values() {
    std::vector<double> values;
    for (int bits = 0; bits < 0x7C00; ++bits) {
        const int exponent = bits >> 10, mantissa = bits & 1023;
        values.push_back(exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
    }
    return values;
}

}  // namespace

TEST_CASE("every f16 pattern has the value that the golden table gives") {
    const hetero::test::Golden golden("golden/numfmt/numfmt.safetensors");
    const auto expected = golden.get<std::uint32_t>("fp16_to_fp32_bits");
    REQUIRE(expected.size() == 65536);
    int wrong = 0;
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
        const float want = std::bit_cast<float>(expected[bits]), got = f16_value(static_cast<std::uint16_t>(bits));
        const bool equal = std::isnan(want) ? std::isnan(got) : std::bit_cast<std::uint32_t>(got) == expected[bits];
        if (!equal) ++wrong;
    }
    CHECK(wrong == 0);
}

TEST_CASE("rounding up and down lands on the neighbours in the table of values") {
    const std::vector<double> values = nonnegative_values();
    std::vector<double> inputs{0,       0x1p-149, 0x1p-24,  0x1p-25, 1e-7 / 127, 0x1p-14, 0x1.FFFp-15, 65504,
                               65503.9, 1,        1.000001, 1.0 / 3, 0.1,        100.02,  2047.5};
    std::mt19937_64 random(7);
    for (int i = 0; i < 20000; ++i)
        inputs.push_back(
            std::ldexp(1.0 + std::generate_canonical<double, 53>(random), static_cast<int>(random() % 42) - 27));
    for (double value : values) {
        inputs.push_back(value);
        inputs.push_back(std::nextafter(value, 1e9));
        if (value > 0) inputs.push_back(std::nextafter(value, 0));
    }
    int wrong = 0;
    for (double x : inputs) {
        if (x > 65504) continue;
        const auto above = std::lower_bound(values.begin(), values.end(), x) - values.begin();
        const auto below = std::upper_bound(values.begin(), values.end(), x) - values.begin() - 1;
        if (f16_round_up(x) != above || f16_round_down(x) != below) ++wrong;
        if (x > 0 && f16_round_down(-x) != (above | 0x8000)) ++wrong;
    }
    CHECK(wrong == 0);
}

TEST_CASE("directed rounding at the ends of the range") {
    CHECK(f16_round_up(65504.0) == 0x7BFF);
    CHECK(f16_round_up(65504.001) == 0x7C00);
    CHECK(f16_round_up(1e300) == 0x7C00);
    CHECK(f16_round_down(70000.0) == 0x7BFF);
    CHECK(f16_round_down(-65504.0) == 0xFBFF);
    CHECK(f16_round_down(-65504.001) == 0xFC00);
    CHECK(f16_round_down(-0.0) == 0);
    CHECK(f16_round_down(-1e-30) == 0x8001);
    CHECK(f16_round_up(1e-300) == 1);
}
