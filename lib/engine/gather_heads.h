// One part of a layer's cache from the ranks that have its heads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/communicator.h"
#include "engine/share.h"

namespace hetero::engine {

// `own`: [token][head][row_bytes] of the heads in kept[rank of this process]; `whole`: of all heads, on rank 0 alone.
// `kept` [rank] are the heads of each rank, ascending and without gaps; of a head that several have, the first hands it
// over. Goes in blocks of tokens, so that little memory is taken. A call of all ranks.
Status gather_heads(Communicator& group, std::span<const Range> kept, std::size_t row_bytes, std::uint64_t n_tokens,
                    std::span<const std::byte> own, std::span<std::byte> whole);

}  // namespace hetero::engine
