// The tiny models of all families on an emulated device, against the fp32 goldens. With HETERO_SMALL only one for each
// kind of op: heads, windows, softcaps, experts, latents, blocks of weights.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "emulation/emulation.h"
#include "golden/tiny.h"

using namespace hetero;
using namespace hetero::test;

TEST_CASE("logits, K and V of every position, and greedy continuations, on a device") {
    session_device() = {&kernels::emulated_ops(), 0, 0};
    std::vector<Case> cases = testdata_cases();
    if (std::getenv("HETERO_SMALL") != nullptr) {
        static constexpr std::array<std::string_view, 6> kinds{"/llama/f32",   "mistral_swa",     "gemma2/",
                                                               "mixtral/bf16", "deepseek_v2/f32", "llama-q8_0"};
        std::erase_if(cases, [](const Case& one) {
            return std::ranges::none_of(
                kinds, [&](std::string_view kind) { return one.model.find(kind) != std::string::npos; });
        });
        REQUIRE(cases.size() == kinds.size());
    }
    for (const Case& one : cases) {
        CAPTURE(one.model);
        const Errors worst = check_case(one);
        MESSAGE(one.model, ": max |d logit| ", worst.logit, ", K and V ", worst.kv);
    }
}
