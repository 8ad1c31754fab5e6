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

// What a candidate rests on that was not measured, one line each, none twice.
void assume(Candidate& candidate, const std::string& line);

// The link of a split, with the hosts that it is between (link.cpp). False: none is known.
[[nodiscard]] bool set_link(const Problem& problem, Candidate& candidate);
// The decoder holds a state that arrives beside the form in which it is kept: both must fit before any is sent.
void check_staging(const Problem& problem, Candidate& candidate);

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
