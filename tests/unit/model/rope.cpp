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
