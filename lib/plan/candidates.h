// Private to plan: all deployments there are, with their timing, memory and estimates.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "plan/search.h"

namespace hetero::plan {

void add_candidates(const Problem& problem, SearchResult& out);
// Capacity, what bounds it, latencies of a request alone (estimate.cpp).
void estimate(const Problem& problem, Candidate& candidate);
// Worth playing: what could be best. Estimated capacity for its cost, those first whose latencies alone keep the goals.
[[nodiscard]] double promise(const Problem& problem, const Candidate& candidate);

// Where KV of cached tokens is kept: in the memory of the device, in another tier of the machine, or nowhere
// (tiers.cpp). The one with which the deployment promises most.
void choose_tier(const Problem& problem, Candidate& candidate);

// Machines for the two stages with the best links between them: of any of the first to any of the second at least
// `rates` (hosts.cpp). Names are empty where hosts have none of their own. `inside`: both may be one machine. nullopt:
// a link that is needed is not known.
struct Pairing {
    std::vector<std::string> from, to;
    LinkRates rates;
};
[[nodiscard]] std::optional<Pairing> choose_hosts(const Problem& problem, std::size_t p, std::size_t d,
                                                  std::uint32_t n_p, std::uint32_t n_d, bool inside);

}  // namespace hetero::plan
