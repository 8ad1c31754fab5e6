#include "engine/share.h"

#include <algorithm>
#include <limits>

namespace hetero::engine {
namespace {

Range part(std::size_t n, std::size_t rank, std::size_t size) noexcept {
    return {n * rank / size, n * (rank + 1) / size};
}

}  // namespace

Range Share::rows(std::size_t n) const noexcept {
    const Range granules = part((n + row_granule - 1) / row_granule, rank_, size_);
    return {std::min(granules.begin * row_granule, n), std::min(granules.end * row_granule, n)};
}

Range Share::heads(std::size_t n_heads) const noexcept { return part(n_heads, rank_, size_); }

Range Share::kv_heads(std::size_t n_heads, std::size_t n_kv_heads) const noexcept {
    const Range queries = heads(n_heads);
    const std::size_t group = n_heads / n_kv_heads;
    return {queries.begin / group, (queries.end + group - 1) / group};
}

std::vector<Range> kv_heads_by_layer(const model::Program& program, const Share& share) {
    std::vector<Range> ranges;
    for (const model::KvLayout& layout : program.kv) ranges.push_back({0, layout.n_kv_heads});
    for (const model::Op& any : program.ops) {
        if (const auto* qkv = std::get_if<model::Qkv>(&any)) {
            ranges[qkv->layer] = share.kv_heads(qkv->n_heads, program.kv[qkv->layer].n_kv_heads);
        }
    }
    return ranges;
}

std::size_t most_ranks(const model::Program& program) {
    std::size_t most = std::numeric_limits<int>::max();
    for (const model::Op& any : program.ops) {
        if (const auto* attention = std::get_if<model::Attention>(&any)) {
            most = std::min<std::size_t>(most, attention->n_heads);
        }
    }
    return most;
}

}  // namespace hetero::engine
