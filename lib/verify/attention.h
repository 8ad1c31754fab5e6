// What softmax attention makes of the stored tokens of a sequence, with one state's K and V and with another's.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "engine/queries.h"
#include "kv/stream.h"
#include "model/program.h"

namespace hetero::verify {

// A sequence of a state.
struct Stored {
    const kv::State* state = nullptr;
    std::size_t sequence = 0;
};

// Sums over queries, from which relative errors are made.
struct AttentionSums {
    std::vector<double> error, norm;  // [query head] of |o' - o|^2, |o|^2
    double max_relative = 0;          // |o' - o| / |o| of a query over all heads
    std::uint64_t worst_position = 0;
};

// Adds to sums[i] what the queries `from`, `from` + `step`, ... of `queries` see in the stored tokens of `reference`
// and of candidates[i]. Tokens that came after them are left out; a window is counted from the query's position.
// K and V are those that the states decode to, in f32. Errors: those of kv::decode_part.
Status add_attention(const engine::Queries& queries, std::size_t from, std::size_t step, const model::KvLayout& layout,
                     const Stored& reference, std::span<const Stored> candidates, ThreadPool& pool,
                     std::span<AttentionSums> sums);

}  // namespace hetero::verify
