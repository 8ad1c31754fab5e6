// The system's words for an errno value, in English whatever the locale.
#pragma once
#include <string>

namespace hetero {

[[nodiscard]] std::string errno_text(int error);  // "No space left on device"

}  // namespace hetero
