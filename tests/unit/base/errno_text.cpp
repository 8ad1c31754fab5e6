#include "base/errno_text.h"

#include <doctest/doctest.h>

#include <cerrno>

using namespace hetero;

TEST_CASE("the system's words, and a number where it has none") {
    CHECK(errno_text(ENOSPC) == "No space left on device");
    CHECK(errno_text(123456) == "error 123456");
}

TEST_CASE("a file that is not there is bad input; one that may not be read is a matter of resources") {
    for (const int error : {ENOENT, ENOTDIR, EISDIR, ENAMETOOLONG, ELOOP, ENXIO})
        CHECK(open_errc(error) == Errc::bad_input);
    for (const int error : {EACCES, EPERM, EMFILE, ENFILE, ENOMEM, EIO}) CHECK(open_errc(error) == Errc::resource);
}
