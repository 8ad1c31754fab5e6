// Private to plan: all deployments there are, with their timing, memory and estimates.
#pragma once
#include <vector>

#include "plan/search.h"

namespace hetero::plan {

void add_candidates(const Problem& problem, SearchResult& out);
// Capacity, what bounds it, latencies of a request alone.
void estimate(const Problem& problem, Candidate& candidate);

}  // namespace hetero::plan
