#include "verify/diagnose.h"

#include "fault_cases.h"

using namespace hetero;
using namespace hetero::test;

namespace {

void use_tiny_model() {
    static const faults::Subject tiny{state_of(tiny_model(), {some_tokens(faults::n_tokens)}),
                                      state_of(tiny_model(), {some_tokens(faults::n_tokens, 77)})};
    faults::subject() = &tiny;
}

}  // namespace

TEST_CASE("healthy states of low precision have no fault") {
    use_tiny_model();
    faults::healthy_states();
}

TEST_CASE("scales ignored") {
    use_tiny_model();
    faults::scales_ignored();
}

TEST_CASE("scales shifted by one group") {
    use_tiny_model();
    faults::scales_shifted();
}

TEST_CASE("scales of K and V swapped or merged") {
    use_tiny_model();
    faults::scales_of_the_other_part();
}

TEST_CASE("wrong zero points") {
    use_tiny_model();
    faults::zero_points();
}

TEST_CASE("codes read with the wrong sign, or with their nibbles swapped") {
    use_tiny_model();
    faults::codes();
}

TEST_CASE("16-bit words taken for another type") {
    use_tiny_model();
    faults::words();
}

TEST_CASE("heads, tokens and parts at the wrong place") {
    use_tiny_model();
    faults::places();
}

TEST_CASE("transposed layouts") {
    use_tiny_model();
    faults::layouts();
}

TEST_CASE("rotary embedding done otherwise") {
    use_tiny_model();
    faults::rope();
}

TEST_CASE("a rotation that was not undone") {
    use_tiny_model();
    faults::rotation();
}

TEST_CASE("frequencies of RoPE: from the model, and from a state where it says enough") {
    use_tiny_model();
    using faults::real_state;
    const auto model = tiny_model();
    const auto from_model = verify::ropes_of(*model);
    const auto from_state = verify::ropes_of(real_state().header.identity);
    REQUIRE(from_model.size() == from_state.size());
    REQUIRE(from_model[0].frequencies.size() == from_state[0].frequencies.size());
    for (std::size_t i = 0; i < from_model[0].frequencies.size(); ++i)
        CHECK(from_model[0].frequencies[i] == doctest::Approx(from_state[0].frequencies[i]).epsilon(1e-12));
    kv::Identity scaled = real_state().header.identity;
    scaled.rope_scaling = "{\"type\":\"linear\"}";
    CHECK(verify::ropes_of(scaled)[0].frequencies.empty());
}
