#include "engine/slots.h"

#include <algorithm>
#include <cmath>

#include "engine/executor_parts.h"

namespace hetero::engine {
namespace {

struct Sizes {  // of the widest mixture
    std::uint64_t experts = 0, top_k = 0, hidden = 0, ffn = 0;
};

Sizes sizes_of(const model::Program& program) {
    Sizes sizes;
    const auto widen = [](std::uint64_t& size, std::uint64_t to) { size = std::max(size, to); };
    for (const model::Op& any : program.ops) {
        const auto* moe = std::get_if<model::MoeAdd>(&any);
        if (moe == nullptr) continue;
        widen(sizes.experts, moe->experts.size());
        widen(sizes.top_k, moe->rule.top_k);
        for (const model::Expert& expert : moe->experts) {
            widen(sizes.hidden, std::max(expert.gate.cols, expert.down.rows));
            widen(sizes.ffn, expert.up.rows);
        }
    }
    return sizes;
}

}  // namespace

std::uint64_t Slots::bytes_needed(const model::Program& program, std::uint32_t chunk_tokens) {
    const Sizes sizes = sizes_of(program);
    const std::uint64_t per_slot =
        (sizes.hidden + 2 * sizes.ffn) * sizeof(float) + sizeof(Routed) + 2 * sizeof(std::uint32_t);
    const std::uint64_t per_token = sizes.top_k * per_slot + 3 * sizes.experts * sizeof(float);
    return per_token * chunk_tokens + 2 * sizes.experts * sizeof(std::uint32_t);
}

Slots::Slots(const model::Program& program, std::uint32_t chunk_tokens) {
    const Sizes sizes = sizes_of(program);
    const std::size_t tokens = chunk_tokens, slots = tokens * sizes.top_k;
    scores_.resize(tokens * sizes.experts);
    work_.resize(2 * tokens * sizes.experts);
    rows_.resize(slots * sizes.hidden);
    gate_.resize(slots * sizes.ffn);
    up_.resize(slots * sizes.ffn);
    routed_.resize(slots);
    slot_of_.resize(slots);
    token_of_.reserve(slots);
    first_.reserve(sizes.experts + 1);
    active_.reserve(sizes.experts);
}

Status Slots::assign(const model::MoeAdd& moe, std::span<const std::uint64_t> positions, ThreadPool& pool) {
    const std::size_t n_tokens = positions.size();
    const std::size_t experts = moe.experts.size();
    top_k_ = moe.rule.top_k;
    FirstError errors;
    pool.parallel_for(n_tokens, [&](std::size_t token, int) {
        const std::span<float> scores(scores_.data() + token * experts, experts);
        const std::span<float> work(work_.data() + token * 2 * experts, 2 * experts);
        if (route(moe.rule, moe.selection_bias.values, scores, work, {routed_.data() + token * top_k_, top_k_})) return;
        const auto odd = std::find_if_not(scores.begin(), scores.end(), [](float x) { return std::isfinite(x); });
        errors.note(token, Error{Errc::bad_input, fmt::format("{}: the score of token {} for expert {} is {}",
                                                              moe.router.name, positions[token], odd - scores.begin(),
                                                              std::isnan(*odd) ? "NaN" : "infinite")});
    });
    HETERO_CHECK(errors.status());

    const std::size_t slots = n_tokens * top_k_;
    first_.assign(experts + 1, 0);
    for (std::size_t i = 0; i < slots; ++i) ++first_[routed_[i].expert + 1];
    active_.clear();
    for (std::uint32_t expert = 0; expert < experts; ++expert) {
        if (first_[expert + 1] != 0) active_.push_back(expert);
        first_[expert + 1] += first_[expert];
    }
    token_of_.resize(slots);
    for (std::size_t i = 0; i < slots; ++i) {  // first_ runs ahead, to the end of each expert's slots
        slot_of_[i] = first_[routed_[i].expert]++;
        token_of_[slot_of_[i]] = static_cast<std::uint32_t>(i / top_k_);
    }
    for (std::size_t expert = experts; expert > 0; --expert) first_[expert] = first_[expert - 1];
    first_[0] = 0;
    return {};
}

}  // namespace hetero::engine
