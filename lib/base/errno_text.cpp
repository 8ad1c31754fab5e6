#include "base/errno_text.h"

#include <fmt/format.h>

#include <cstring>

namespace hetero {

std::string errno_text(int error) {
    const char* text = strerrordesc_np(error);  // unlike strerror: never translated, and safe in threads
    return text != nullptr ? text : fmt::format("error {}", error);
}

}  // namespace hetero
