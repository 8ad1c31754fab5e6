// hetero-kv 1 files (HDF5). The format is described in hetero-kv(5).
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/atomic_file.h"
#include "kv/integrity.h"
#include "kv/stream.h"

namespace hetero::kv {

enum class Verify { checksums, structure_only };

// Refuses what is not complete, damaged, or of a larger major version. Works where file locks do not.
Result<std::unique_ptr<Source>> open_file(const std::string& path, Verify verify = Verify::checksums);
// The same from an HDF5 image in memory (what a pipe carries).
Result<std::unique_ptr<Source>> open_image(std::vector<std::byte> image, std::string name);

// Written to a temporary beside `path`, published by commit().
Result<std::unique_ptr<Sink>> create_file(const std::string& path, io::Overwrite overwrite);

// A layer that an unfinished file has: where the bytes of its arrays lie, and their checksums.
struct WrittenLayer {
    std::array<std::array<std::uint64_t, std::size(part_arrays)>, 2> offsets{};  // [part][as part_arrays]
    LayerChecksums checksums;
};
// The same into a file that the caller may keep(), and that is told of each layer when its bytes are on their way.
Result<std::unique_ptr<Sink>> create_file(std::shared_ptr<io::AtomicFile> file, const std::string& path,
                                          std::function<void(WrittenLayer)> written);
// The finished image is handed to `take` at commit().
std::unique_ptr<Sink> create_image(std::function<Status(std::span<const std::byte>)> take, std::string name);

}  // namespace hetero::kv
