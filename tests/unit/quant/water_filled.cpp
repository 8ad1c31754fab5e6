// Codes of unlike widths: who gets the bits, what is stored, and how far values come back.
#include <algorithm>
#include <random>

#include "quant/spec.h"
#include "unit/quant/support.h"

using namespace hetero;
using namespace hetero::test;
using quant::Params;
using quant::Shape;

namespace {

Params params_of(std::string_view spec) {
    const auto parsed = quant::parse_spec(spec);
    REQUIRE_MESSAGE(parsed.has_value(), parsed.error().message);
    return parsed->params;
}

// The rule as the manual has it, bit by bit.
std::vector<int> widths(const std::vector<float>& range, int mean) {
    std::vector<int> width(range.size(), 1);
    for (std::size_t left = range.size() * static_cast<std::size_t>(mean - 1); left > 0; --left) {
        std::size_t best = range.size();
        float largest = -1;
        for (std::size_t c = 0; c < range.size(); ++c) {
            const float step = range[c] / static_cast<float>((1 << width[c]) - 1);
            if (width[c] < 12 && step > largest) largest = step, best = c;
        }
        ++width[best];
    }
    return width;
}

std::vector<float> uneven(const Shape& shape, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(shape.elements());
    for (std::size_t i = 0; i < x.size(); ++i) {
        const int dim = static_cast<int>(i % shape.head_dim);
        x[i] = normal(random) * std::ldexp(1.0F, dim % 7 - 3) + static_cast<float>(dim % 3);
        if (dim % 16 == 5) x[i] = 3.25F;  // constant
    }
    return x;
}

}  // namespace

TEST_CASE("bits go to the channel with the largest step, and codes lie in the order of the channels") {
    // Ranges 16, 4, 1 and 0; each channel has a bit, the other four of wf2 go to the steps 16, 16/3, 4 and 16/7.
    const Shape shape{3, 1, 4};
    const std::vector<float> x = {0,    0,    0,    5,   // all codes 0
                                  16,   4,    1,    5,   // the largest: 15, 3, 1, and 0
                                  3.2F, 1.4F, 0.6F, 5};  // 3, 1, 1, 0
    const auto encoded = encode("wf2", params_of("wf2"), shape, x);
    CHECK(as<std::uint32_t>(encoded.values) == std::vector<std::uint32_t>{0x00, 0x7F, 0x53});
    CHECK(scales(params_of("wf2"), encoded.scale) == std::vector<float>{16, 4, 1, 0});
    CHECK(scales(params_of("wf2"), encoded.zero) == std::vector<float>{0, 0, 0, 5});
    const float third = 4.0F / 3.0F, fifteenth = 16.0F / 15.0F;
    CHECK(decode("wf2", params_of("wf2"), shape, encoded) ==
          std::vector<float>{0, 0, 0, 5, 16, 4, 1, 5, 3 * fifteenth, third, 1, 5});
}

TEST_CASE("every value is within half the step that the rule gives its channel") {
    for (const int mean : {2, 3, 4, 5, 6, 8, 9}) {
        const std::string name = "wf" + std::to_string(mean);
        for (const std::uint32_t head_dim : {1U, 3U, 64U, 80U, 128U}) {
            for (const std::uint64_t tokens : {1, 31, 32, 33, 70}) {
                CAPTURE(name);
                CAPTURE(head_dim);
                CAPTURE(tokens);
                const Shape shape{tokens, 2, head_dim};
                const Params p = params_of(name);
                const std::vector<float> x = uneven(shape, head_dim + static_cast<unsigned>(tokens));
                const auto encoded = encode(name, p, shape, x);
                const auto back = decode(name, p, shape, encoded);
                const auto range = scales(p, encoded.scale), zero = scales(p, encoded.zero);
                int beyond = 0;
                for (std::size_t group = 0; group * 32 < tokens; ++group) {
                    for (std::size_t head = 0; head < 2; ++head) {
                        const std::size_t first = (group * 2 + head) * head_dim;
                        const std::vector<float> own(range.begin() + static_cast<std::ptrdiff_t>(first),
                                                     range.begin() + static_cast<std::ptrdiff_t>(first + head_dim));
                        const std::vector<int> width = widths(own, mean);
                        for (std::size_t t = group * 32; t < std::min<std::size_t>(tokens, group * 32 + 32); ++t) {
                            for (std::size_t c = 0; c < head_dim; ++c) {
                                const std::size_t i = (t * 2 + head) * head_dim + c;
                                const double step = static_cast<double>(own[c]) / ((1 << width[c]) - 1);
                                const double slack = 4e-7 * (std::fabs(x[i]) + std::fabs(zero[first + c]) + own[c]);
                                beyond += std::fabs(static_cast<double>(back[i]) - x[i]) <= step / 2 + slack ? 0 : 1;
                            }
                        }
                    }
                }
                CHECK(beyond == 0);
            }
        }
    }
}

TEST_CASE("channels of unlike ranges come back nearer than with equal widths, at the same size") {
    const Shape shape{64, 2, 64};
    const std::vector<float> x = uneven(shape, 3);
    const auto error = [&](std::string_view name, std::string_view spec) {
        const auto encoded = encode(name, params_of(spec), shape, x);
        const auto back = decode(name, params_of(spec), shape, encoded);
        double sum = 0;
        for (std::size_t i = 0; i < x.size(); ++i) sum += (back[i] - x[i]) * (back[i] - x[i]);
        return std::pair(sum, encoded.values.size() + encoded.scale.size() + encoded.zero.size());
    };
    const auto [equal, equal_bytes] = error("int4", "int4:channel:g32:asym");
    const auto [filled, filled_bytes] = error("wf4", "wf4");
    CHECK(filled_bytes == equal_bytes);
    CHECK(filled < equal / 8);  // ranges differ by 2^6, and some are 0
}

TEST_CASE("other axes, symmetric codes, f32 ranges and rotation are refused; the group is 32 unless said") {
    for (const char* text : {"wf4:token", "wf4:head", "wf4:sym", "wf4:f32", "had:wf4"}) {
        CAPTURE(text);
        CHECK_FALSE(codec("wf4").check(params_of(text), 64).has_value());
    }
    const Shape shape{40, 2, 64};
    const std::vector<float> x = uneven(shape, 9);
    const auto usual = encode("wf4", params_of("wf4"), shape, x), said = encode("wf4", params_of("wf4:g32"), shape, x);
    CHECK(usual.values == said.values);
    CHECK(usual.scale == said.scale);
}
