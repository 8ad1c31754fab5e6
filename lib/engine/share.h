// What one rank of a tensor-parallel group computes. Matrices are divided by output rows alone, so each element of a
// product is computed whole by one rank, in the order of summation that a single process has: the bits do not depend on
// the number of ranks. README.md says what that costs.
#pragma once
#include <cstddef>
#include <vector>

#include "base/communicator.h"
#include "model/program.h"

namespace hetero::engine {

struct Range {
    std::size_t begin = 0, end = 0;
    [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
    [[nodiscard]] Range times(std::size_t n) const noexcept { return {begin * n, end * n}; }
    bool operator==(const Range&) const = default;
};

// Ranges of rows, of ranks and of tasks, begin at multiples of it: element-wise ops have whole vectors.
inline constexpr std::size_t row_granule = 16;

class Share {
public:
    explicit Share(const Communicator& group)
        : Share(static_cast<std::size_t>(group.rank()), static_cast<std::size_t>(group.size())) {}
    Share(std::size_t rank, std::size_t size) : rank_(rank), size_(size) {}

    [[nodiscard]] std::size_t rank() const noexcept { return rank_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }  // ranks
    [[nodiscard]] Share of(std::size_t rank) const noexcept { return {rank, size_}; }

    // Output rows of a matrix, cut at multiples of row_granule.
    [[nodiscard]] Range rows(std::size_t n) const noexcept;
    // Query heads, at least one where size() <= n_heads.
    [[nodiscard]] Range heads(std::size_t n_heads) const noexcept;
    // The KV heads that these read; ranks share one where a group of query heads is cut.
    [[nodiscard]] Range kv_heads(std::size_t n_heads, std::size_t n_kv_heads) const noexcept;

private:
    std::size_t rank_, size_;
};

// The KV heads that a rank keeps of each layer.
[[nodiscard]] std::vector<Range> kv_heads_by_layer(const model::Program& program, const Share& share);
// The smallest number of query heads of a layer: there cannot be more ranks.
[[nodiscard]] std::size_t most_ranks(const model::Program& program);

}  // namespace hetero::engine
