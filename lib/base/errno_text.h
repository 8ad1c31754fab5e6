// What an errno value says, in words, and as a kind of failure.
#pragma once
#include <string>

#include "base/result.h"

namespace hetero {

[[nodiscard]] std::string errno_text(int error);  // "No space left on device", in English whatever the locale

// Of a file that cannot be opened for reading: bad_input where there is none of this name, else resource (permission,
// too many open files).
[[nodiscard]] Errc open_errc(int error) noexcept;

}  // namespace hetero
