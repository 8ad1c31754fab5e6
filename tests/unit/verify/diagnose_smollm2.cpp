// The same faults in the K and V of a trained model, whose channels and first tokens stand out. Its first layers are
// enough.
#include <cstdlib>
#include <filesystem>

#include "fault_cases.h"
#include "support/skip.h"

using namespace hetero;
using namespace hetero::test;

namespace {

constexpr std::uint32_t kept_layers = 6;

kv::State first_layers(kv::State state) {
    state.header.identity.n_layers = kept_layers;
    state.header.k_schemes.resize(kept_layers);
    state.header.v_schemes.resize(kept_layers);
    state.layers[0].resize(kept_layers);
    return state;
}

// False where the model is not there.
bool use_smollm2() {
    const char* cache = std::getenv("HETERO_CACHE");
    const char* home = std::getenv("HOME");
    const std::string folder = cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache/hetero";
    const std::string path = folder + "/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!std::filesystem::exists(path)) {
        note_skip("there is no " + path + "; scripts/quickstart.sh fetches it, HETERO_CACHE names another folder");
        return false;
    }
    static const faults::Subject trained = [&] {
        const ModelPtr model = must(model::Model::load(path));
        return faults::Subject{first_layers(state_of(model, {some_tokens(faults::n_tokens)})),
                               first_layers(state_of(model, {some_tokens(faults::n_tokens, 77)}))};
    }();
    faults::subject() = &trained;
    return true;
}

}  // namespace

TEST_CASE("a trained model: healthy states have no fault") {
    if (use_smollm2()) faults::healthy_states();
}

TEST_CASE("a trained model: scales, zero points and codes") {
    if (!use_smollm2()) return;
    faults::scales_ignored();
    faults::scales_shifted();
    faults::scales_of_the_other_part();
    faults::zero_points();
    faults::codes();
    faults::words();
}

TEST_CASE("a trained model: places, layouts and rotations") {
    if (!use_smollm2()) return;
    faults::places();
    faults::layouts();
    faults::rope();
    faults::rotation();
}
