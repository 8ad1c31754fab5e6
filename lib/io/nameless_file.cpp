#include "io/nameless_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace hetero::io {

std::vector<std::string> temporary_folders() {
    std::vector<std::string> folders;
    if (const char* folder = std::getenv("TMPDIR"); folder != nullptr && *folder != '\0') folders.emplace_back(folder);
    folders.insert(folders.end(), {"/var/tmp", "/tmp"});
    return folders;
}

int open_nameless(const std::string& folder) {
    const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    std::string name = folder + "/.hetero-XXXXXX";  // file systems without O_TMPFILE: named for an instant
    const int named = ::mkostemp(name.data(), O_CLOEXEC);
    if (named >= 0) ::unlink(name.c_str());
    return named;
}

}  // namespace hetero::io
