// Which experts of a mixture a token goes to: a pure function of the router's product, so that every rank of a model
// spread over machines decides alike.
#pragma once
#include <cstdint>
#include <span>

#include "model/program.h"

namespace hetero::engine {

struct Routed {
    std::uint32_t expert = 0;
    float weight = 0;
    friend bool operator==(const Routed&, const Routed&) = default;
};

// `scores` [expert]: the router's product, overwritten; `bias` [expert], or empty; `work` [2 * experts]; `out`
// [rule.top_k], in the order of the experts' numbers. The rule must fit the sizes (model families check that).
// False, and `out` unspecified, where a score is not a number.
[[nodiscard]] bool route(const model::RoutingRule& rule, std::span<const float> bias, std::span<float> scores,
                         std::span<float> work, std::span<Routed> out);

}  // namespace hetero::engine
