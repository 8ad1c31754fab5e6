// Memory that lies in a file without a name: for what is too large to stay in RAM, and may be written out when others
// need it.
#pragma once
#include <cstddef>
#include <memory>

#include "base/result.h"

namespace hetero::io {

// Zeros, at the begin of a page; the disk space is taken at once. In $TMPDIR, /var/tmp or /tmp. Errors: resource.
[[nodiscard]] Result<std::shared_ptr<std::byte>> take_file_memory(std::size_t bytes);

}  // namespace hetero::io
