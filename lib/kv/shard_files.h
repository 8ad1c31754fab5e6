// Files of tensor-parallel shards. One rule gives their names: rank 0 of 2 of "state.h5" is "state.tp0of2.h5".
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/file.h"

namespace hetero::kv {

// Of a name without extension: "state" -> "state.tp0of2".
[[nodiscard]] std::string shard_path(const std::string& path, std::uint32_t tp_rank, std::uint32_t tp_size);

struct ShardName {
    std::string whole;  // "state.h5"
    std::uint32_t tp_rank = 0, tp_size = 1;
};
// Nothing where `path` is not named as a shard is.
[[nodiscard]] std::optional<ShardName> parse_shard_path(const std::string& path);

// The files that open_state(path) may read: `path` itself, and the shards beside it that belong to it. Neither is
// there: bad_input, or what the system says.
Result<std::vector<std::string>> state_files(const std::string& path);

// A state in one file or in the files of its shards. `path` may be a whole state, a shard, which opens all shards of
// its set, or the name of the whole where only shards are there. Shards that are missing, misnamed or of another state
// are refused by name.
Result<std::unique_ptr<Source>> open_state(const std::string& path, Verify verify = Verify::checksums);

// What open_state() reads, opened but not put together: a whole state, or all shards of a set.
struct StateFiles {
    std::vector<std::unique_ptr<Source>> sources;  // at least one
    std::string name;
    [[nodiscard]] const Identity& identity() const noexcept { return sources.front()->header().identity; }
};
Result<StateFiles> open_files(const std::string& path, Verify verify = Verify::checksums);
// The heads of `shard`; of files that have none of them only the headers are read. Shard{}: the whole state.
Result<std::unique_ptr<Source>> read_shard(StateFiles files, const Shard& shard);

}  // namespace hetero::kv
