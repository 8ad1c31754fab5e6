// When requests arrive and how long they are.
#pragma once
#include <cstdint>
#include <vector>

#include "sched/request.h"

namespace hetero::sched {

// All alike, at the moments of a Poisson process. The same on every machine for the same seed.
struct PoissonLoad {
    std::uint32_t requests = 0;
    double rate_per_s = 1;  // > 0
    std::uint32_t prompt_tokens = 1, cached_tokens = 0, output_tokens = 1;
    std::uint64_t seed = 1;
};
[[nodiscard]] std::vector<Request> poisson_requests(const PoissonLoad& load);

// The requests of a trace, repeated until there are `requests` of them, at Poisson moments of another rate.
[[nodiscard]] std::vector<Request> resampled(const std::vector<Request>& trace, std::uint32_t requests,
                                             double rate_per_s, std::uint64_t seed);

// All of a trace with its bursts, time stretched so that requests come at this mean rate. Where all come at once they
// still do.
[[nodiscard]] std::vector<Request> as_fast(const std::vector<Request>& trace, double rate_per_s);
// So many consecutive requests, those that come in the shortest time.
[[nodiscard]] std::vector<Request> busiest(const std::vector<Request>& trace, std::size_t requests);

}  // namespace hetero::sched
