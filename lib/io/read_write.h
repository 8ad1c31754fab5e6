// All of some bytes between memory and an open file; EINTR and short transfers are handled. Errors have the system's
// reason, not the file's name.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace hetero::io {

// Bytes read from `offset` on: all of `out`, or fewer where the file ends. Errors: bad_input where no file has such an
// offset; resource.
[[nodiscard]] Result<std::size_t> read_up_to_end(int fd, std::uint64_t offset, std::span<std::byte> out);
// The same; a file that ends before: bad_input.
[[nodiscard]] Status read_fully(int fd, std::uint64_t offset, std::span<std::byte> out);
// At `offset`, or at the descriptor's own place. Where a file size limit is set, SIGXFSZ must be ignored to see the
// error. Errors: resource.
[[nodiscard]] Status write_fully(int fd, std::uint64_t offset, std::span<const std::byte> bytes);
[[nodiscard]] Status write_fully(int fd, std::span<const std::byte> bytes);

}  // namespace hetero::io
