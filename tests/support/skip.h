// A test that cannot run here (model or device missing) says so and is never counted as passed:
// its program ends with status 77. Put tests that may skip in a source file of their own.
#pragma once
#include <string>

namespace hetero::test {
void note_skip(const std::string& reason);
bool anything_skipped();
}  // namespace hetero::test
