// Temporary files that no name leads to: gone when nothing has them open.
#pragma once
#include <string>
#include <vector>

namespace hetero::io {

// Where temporary files may lie, the best first: $TMPDIR, /var/tmp, /tmp.
[[nodiscard]] std::vector<std::string> temporary_folders();
// For reading and writing, mode 0600. -1: errno.
[[nodiscard]] int open_nameless(const std::string& folder);

}  // namespace hetero::io
