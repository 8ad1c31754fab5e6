// Backends that were compiled in but cannot be tested on this CPU: reported as skipped, not passed.
#include "inputs.h"
#include "support/skip.h"

TEST_CASE("every backend that was compiled in was tested") {
    std::size_t tested = 0;
    for (const auto* const* b = hetero::kernels::all_backends(); *b; ++b) {
        if (hetero::kernels::backend_supported(**b))
            ++tested;
        else
            hetero::test::note_skip(std::string((*b)->name) + " cannot run on this CPU");
    }
    CHECK(tested == hetero::test::runnable_backends().size());
}
