// The queries of attention, for those who watch a model at work.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/result.h"
#include "model/program.h"

namespace hetero::engine {

// As they are multiplied with the cache, rotated: [token][head][query_dim], `stride` elements from one token to the
// next. In a group only the heads of this rank are computed.
struct Queries {
    const model::Attention& attention;
    std::uint64_t first = 0;  // position of the first token
    std::size_t n_tokens = 0;
    const float* values = nullptr;  // until the call returns
    std::size_t stride = 0;
};
using QueriesFn = std::function<Status(const Queries&)>;

}  // namespace hetero::engine
