// The main of every unit test program. Exit status 77 tells ctest that nothing could run here.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "support/skip.h"

int main(int argc, char** argv) {
    doctest::Context context(argc, argv);
    const int status = context.run();
    return status == 0 && hetero::test::anything_skipped() ? 77 : status;
}

namespace hetero::test {
namespace {
bool g_skipped = false;
}
void note_skip(const std::string& reason) {
    g_skipped = true;
    MESSAGE("skipped: ", reason);
}
bool anything_skipped() { return g_skipped; }
}  // namespace hetero::test
