// What the links between all ranks of a job can carry, by plain MPI: latency, bandwidth by size, both directions and
// both at once. One pair after the other, so that none disturbs another.
#pragma once
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "transport/endpoint.h"

namespace hetero::transport {

struct SurveyOptions {
    std::vector<std::uint64_t> message_bytes = {4U << 10, 64U << 10, 1U << 20, 8U << 20};  // ascending, up to 32 MiB
    double round_s = 0.03;  // one transfer takes about so long
    int rounds = 5;
    int round_trips = 1000;  // fewer on a slow link
};

// One direction.
struct SurveyedLink {
    int from = 0, to = 0;  // ranks
    double latency_s = 0;  // half the median round trip of 64 bytes
    struct Size {
        std::uint64_t message_bytes = 0;
        double bytes_per_s = 0;  // median of the rounds
    };
    std::vector<Size> sizes;           // those that do not take too long
    double both_ways_bytes_per_s = 0;  // sum of both directions at once
    bool asymmetric = false;  // of the largest size, the other direction's rounds all lie apart, and by over a fifth
};

// How many ranks mpirun or srun has started; usage: none.
Result<int> job_size();

// All ranks of the job call it, after prepare() with a group of all of them. Complete on rank 0, empty on the others.
Result<std::vector<SurveyedLink>> survey_links(const SurveyOptions& options);

}  // namespace hetero::transport
