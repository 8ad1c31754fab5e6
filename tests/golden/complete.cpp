// The complete goldens, of which testdata has a part: every model of the folder that HETERO_GOLDEN_DIR names, laid out
// as testdata/golden/tiny is.
#include "golden/tiny.h"
#include "support/skip.h"

using namespace hetero;
using namespace hetero::test;

TEST_CASE("every model of an outside folder") {
    const char* folder = std::getenv("HETERO_GOLDEN_DIR");
    if (folder == nullptr || *folder == '\0') {
        note_skip("HETERO_GOLDEN_DIR is not set; testdata/README.md says what it is for");
        return;
    }
    const std::vector<Case> cases = cases_in(std::filesystem::absolute(folder));
    REQUIRE_FALSE(cases.empty());
    for (const Case& one : cases) {
        CAPTURE(one.model);
        const Errors worst = check_case(one);
        MESSAGE(std::filesystem::relative(one.model, folder).string(), ": max |d logit| ", worst.logit, ", K and V ",
                worst.kv);
    }
}
