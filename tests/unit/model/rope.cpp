#include "model/rope.h"

#include <cmath>
#include <numbers>

#include "support.h"

using namespace hetero;
using namespace hetero::test;
using model::RopeScalingKind;

TEST_CASE("unscaled frequencies are theta^(-2i/d)") {
    model::RopeConfig rope;
    rope.theta = 10000;
    rope.rotary_dim = 8;
    const auto frequencies = model::inverse_frequencies(rope);
    REQUIRE(frequencies.size() == 4);
    const double expected[] = {1, 0.1, 0.01, 0.001};
    for (std::size_t i = 0; i < 4; ++i) CHECK(frequencies[i] == doctest::Approx(expected[i]).epsilon(1e-14));
}

TEST_CASE("linear scaling divides every frequency") {
    model::RopeConfig rope;
    rope.rotary_dim = 64;
    const auto plain = model::inverse_frequencies(rope);
    rope.scaling = RopeScalingKind::linear;
    rope.factor = 4;
    const auto scaled = model::inverse_frequencies(rope);
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(scaled[i] == plain[i] / 4);
}

TEST_CASE("llama3 scaling leaves short waves, stretches long ones, and blends between") {
    model::RopeConfig rope;
    rope.theta = 500000;
    rope.rotary_dim = 128;
    const auto plain = model::inverse_frequencies(rope);
    rope.scaling = RopeScalingKind::llama3;
    rope.factor = 8;
    rope.low_freq_factor = 1;
    rope.high_freq_factor = 4;
    rope.original_context = 8192;
    const auto scaled = model::inverse_frequencies(rope);
    int kept = 0, blended = 0, stretched = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
        const double wavelength = 2 * std::numbers::pi / plain[i];
        if (wavelength < 2048) {
            CHECK(scaled[i] == plain[i]);
            ++kept;
        } else if (wavelength > 8192) {
            CHECK(scaled[i] == plain[i] / 8);
            ++stretched;
        } else {
            CHECK(scaled[i] < plain[i]);
            CHECK(scaled[i] > plain[i] / 8);
            ++blended;
        }
    }
    // As for Llama 3.1: 29 pairs stay, 6 are blended, 29 are stretched.
    CHECK(kept == 29);
    CHECK(blended == 6);
    CHECK(stretched == 29);
}

// Pairs and frequencies that transformers 5.24 computes (modeling_rope_utils, in f32).
TEST_CASE("YaRN leaves fast pairs, stretches slow ones, and blends between, as transformers does") {
    struct Expected {
        std::size_t pair;
        double frequency;
    };
    struct Case {
        model::RopeConfig rope;
        std::vector<Expected> expected;
    };
    const auto yarn = [](double theta, std::uint32_t dims, double factor, std::uint32_t context) {
        model::RopeConfig rope;
        rope.theta = theta;
        rope.rotary_dim = dims;
        rope.scaling = RopeScalingKind::yarn;
        rope.factor = factor;
        rope.original_context = context;
        return rope;
    };
    Case cases[] = {{yarn(1e6, 128, 4, 32768),  // as Qwen2.5 is stretched
                     {{0, 1},
                      {1, 0.805842221},
                      {8, 0.177827939},
                      {16, 0.0316227786},
                      {24, 0.00537532149},
                      {32, 0.000602941145},
                      {40, 4.44569851e-05},
                      {48, 7.90569356e-06},
                      {63, 3.10234441e-07}}},
                    {yarn(1e4, 64, 40, 4096),  // DeepSeek-V2
                     {{0, 1},
                      {4, 0.316227764},
                      {8, 0.100000001},
                      {12, 0.0268793609},
                      {16, 0.00550000044},
                      {20, 0.000790569407},
                      {24, 2.49999994e-05},
                      {31, 3.33380353e-06}}},
                    {yarn(150000, 64, 32, 4096),  // bounds that are not whole pairs
                     {{0, 1},
                      {8, 0.0508132726},
                      {12, 0.00679495931},
                      {16, 0.000456483918},
                      {20, 1.8188337e-05},
                      {24, 4.09997847e-06},
                      {31, 3.0235114e-07}}}};
    cases[2].rope.whole_dims = false;
    for (const Case& one : cases) {
        const auto frequencies = model::inverse_frequencies(one.rope);
        for (const Expected& expected : one.expected) {
            CAPTURE(one.rope.theta);
            CAPTURE(expected.pair);
            CHECK(frequencies.at(expected.pair) == doctest::Approx(expected.frequency).epsilon(2e-6));
        }
    }
}

TEST_CASE("YaRN's growth of attention") {
    CHECK(model::yarn_growth(4) == doctest::Approx(1.138629436111989).epsilon(1e-14));
    CHECK(model::yarn_growth(32, 1) / model::yarn_growth(32, 0.5) ==
          doctest::Approx(1.1476934674947155).epsilon(1e-14));
    CHECK(model::yarn_growth(1) == 1);
    CHECK(model::yarn_growth(0.5) == 1);
    CHECK(model::yarn_growth(40, 0) == 1);
}

TEST_CASE("a GGUF's divisors mean the same as the scaling that they were made from") {
    const auto folder = model::Model::load(testdata("golden/tiny/llama3_rope/bf16"));
    const auto gguf = model::Model::load(testdata("golden/tiny/gguf/llama3_rope-f16.gguf"));
    REQUIRE(folder.has_value());
    REQUIRE(gguf.has_value());
    const auto expected = model::inverse_frequencies((*folder)->config.rope);
    const auto got = model::inverse_frequencies((*gguf)->config.rope);
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-6));
}
