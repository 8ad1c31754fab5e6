#include "base/errno_text.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace hetero {

std::string errno_text(int error) {
    const char* text = strerrordesc_np(error);  // unlike strerror: never translated, and safe in threads
    return text != nullptr ? text : fmt::format("error {}", error);
}

Errc open_errc(int error) noexcept {
    const bool absent = error == ENOENT || error == ENOTDIR || error == EISDIR || error == ENAMETOOLONG ||
                        error == ELOOP || error == ENXIO;
    return absent ? Errc::bad_input : Errc::resource;
}

}  // namespace hetero
