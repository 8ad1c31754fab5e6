// The buffers of mixtures of experts, and which token goes where. A slot is one token at one of its experts; the slots
// of an expert are adjacent, in the order of the tokens, so that its weights are read once for all of them.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "engine/routing.h"
#include "model/program.h"

namespace hetero::engine {

class Slots {
public:
    Slots(const model::Program& program, std::uint32_t chunk_tokens);
    [[nodiscard]] static std::uint64_t bytes_needed(const model::Program& program, std::uint32_t chunk_tokens);

    // Chooses the experts of each token from scores() [token][expert], and gives each choice a slot; `positions` are
    // the tokens', for messages. A score that is not a number: bad_input naming the router, the first such token and
    // the expert.
    Status assign(const model::MoeAdd& moe, std::span<const std::uint64_t> positions, ThreadPool& pool);

    [[nodiscard]] float* scores() noexcept { return scores_.data(); }
    [[nodiscard]] float* rows() noexcept {
        return rows_.data();
    }  // [slot][hidden]: inputs gathered, later the products
    [[nodiscard]] float* gate() noexcept { return gate_.data(); }  // [slot][ffn]
    [[nodiscard]] float* up() noexcept { return up_.data(); }      // [slot][ffn]

    [[nodiscard]] std::size_t size() const noexcept { return token_of_.size(); }
    [[nodiscard]] std::uint32_t token_of(std::size_t slot) const noexcept { return token_of_[slot]; }
    [[nodiscard]] std::span<const std::uint32_t> active() const noexcept { return active_; }  // experts, ascending
    [[nodiscard]] std::uint32_t first(std::size_t expert) const noexcept { return first_[expert]; }
    [[nodiscard]] std::uint32_t count(std::size_t expert) const noexcept { return first_[expert + 1] - first_[expert]; }
    // Of one token's choices, in the order of the experts' numbers.
    struct Choice {
        std::uint32_t slot;
        float weight;
    };
    [[nodiscard]] Choice choice(std::size_t token, std::size_t k) const noexcept {
        return {slot_of_[token * top_k_ + k], routed_[token * top_k_ + k].weight};
    }

private:
    std::size_t top_k_ = 0;
    std::vector<float> scores_, work_;  // [token][expert], [token][2 * experts]
    std::vector<float> rows_, gate_, up_;
    std::vector<Routed> routed_;           // [token][top_k]
    std::vector<std::uint32_t> slot_of_;   // [token][top_k]
    std::vector<std::uint32_t> first_;     // [expert + 1]
    std::vector<std::uint32_t> token_of_;  // [slot]
    std::vector<std::uint32_t> active_;
};

}  // namespace hetero::engine
