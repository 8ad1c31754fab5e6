// One large block of bytes that is kept from one run to the next: made from something else, so that a file that is
// missing, damaged or of another key is no error but made again. Native byte order and layout; not for other machines.
//
//   0        "HETKEPT\0", u32 version 1, u32 pieces, u64 bytes, key[32] (SHA-256), u32 crc[piece], u32 crc of all
//   before 2 MiB    the bytes; piece i is [i * 4 MiB, (i + 1) * 4 MiB), each with its CRC-32C
//
// The bytes begin where huge pages do, and are written in whole ones, so that systems whose page cache has huge pages
// map them so.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/threads.h"
#include "io/mapped_file.h"

namespace hetero::io {

class KeptBytes {
public:
    // Maps the file and checks every byte. `size` is what the bytes must have. Errors: bad_input (missing, of another
    // key or size, damaged), resource.
    static Result<KeptBytes> open(const std::string& path, std::string_view key, std::size_t size, ThreadPool& pool);
    // Writes it, in the place of what is there, so that others see either the old file or the whole new one; makes its
    // folder. Errors as of AtomicFile.
    static Status write(const std::string& path, std::string_view key, std::span<const std::byte> bytes,
                        ThreadPool& pool);

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept;  // aligned to 64
    [[nodiscard]] const std::string& path() const noexcept { return file_.path(); }

private:
    explicit KeptBytes(MappedFile file) : file_(std::move(file)) {}
    MappedFile file_;
};

}  // namespace hetero::io
