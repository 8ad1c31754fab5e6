// The tiny models of all families on an emulated device, against the fp32 goldens.
#include "emulation/emulation.h"
#include "golden/tiny.h"

using namespace hetero;
using namespace hetero::test;

TEST_CASE("logits, K and V of every position, and greedy continuations, on a device") {
    session_device() = {&kernels::emulated_ops(), 0, 0};
    for (const Case& one : testdata_cases()) {
        CAPTURE(one.model);
        const Errors worst = check_case(one);
        MESSAGE(one.model, ": max |d logit| ", worst.logit, ", K and V ", worst.kv);
    }
}
