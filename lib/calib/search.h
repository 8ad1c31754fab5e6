// Which precision each layer's K and V should have: from the drift that each part causes alone to the choices that cost
// least for what they lose.
//
// The model is that KL adds up: KL of a choice = sum over parts of alone[part] * noise[part][option] /
// noise[part][base] * factor[option]. `alone` is measured with the part at the ladder's base option and all else f16;
// the noise ratio (mean squared errors) carries it to the other options; and the factor makes the sum right where all
// layers have the same option, which is measured too. Chosen points are measured in the end, as the model is a model.
#pragma once
#include <vector>

#include "calib/allocate.h"
#include "calib/campaign.h"

namespace hetero::calib {

// The options of K and of V, in every layer.
struct Ladder {
    std::vector<quant::Spec> k, v;
    std::size_t base_k = 0, base_v = 0;  // the options at which parts are measured alone
    std::uint32_t sinks = 0, window = 0;
    [[nodiscard]] const std::vector<quant::Spec>& of(kv::PartId part) const noexcept {
        return part == kv::PartId::k ? k : v;
    }
    [[nodiscard]] std::size_t base(kv::PartId part) const noexcept { return part == kv::PartId::k ? base_k : base_v; }
    [[nodiscard]] kv::Scheme scheme(kv::PartId part, std::size_t option) const;
};
[[nodiscard]] Ladder default_ladder();

// What is measured before the search: first every part alone at its base option, [layer][K, V], then every option in
// all layers' K, then in all layers' V.
[[nodiscard]] std::vector<Job> search_jobs(const Ladder& ladder, std::size_t n_layers);

// What was measured; parts are numbered layer * 2 + (0: K, 1: V).
struct Evidence {
    std::vector<double> alone;                     // [part] mean KL
    std::vector<std::vector<double>> noise;        // [part][option] mean squared error
    std::vector<std::vector<std::uint64_t>> cost;  // [part][option] bytes
    std::vector<double> whole_k, whole_v;          // [option] mean KL
};
// Means of `outcomes`, which are those of search_jobs(); noise and cost from the bench, over `texts`.
Result<Evidence> gather(Bench& bench, const Ladder& ladder, const std::vector<Outcome>& outcomes,
                        const std::vector<std::size_t>& texts);

// [part][option]; `k_weight` multiplies the losses of K. usage: figures that are negative or not finite.
Result<std::vector<std::vector<Option>>> expected_losses(const Ladder& ladder, const Evidence& evidence,
                                                         double k_weight = 1);

[[nodiscard]] Assignment to_assignment(const Ladder& ladder, const std::vector<std::uint32_t>& chosen);

// Choices for a budget of bytes that deserve a measurement: the best of the model, the best that is alike in all
// layers, and, where `thorough`, those that are best where K counts half and double, and the second best that is alike.
// None: nothing fits.
Result<std::vector<Assignment>> candidates(const Ladder& ladder, const Evidence& evidence, std::uint64_t budget,
                                           bool thorough = true);

}  // namespace hetero::calib
