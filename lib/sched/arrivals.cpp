#include "sched/arrivals.h"

#include <cmath>
#include <random>

namespace hetero::sched {
namespace {

// What std::exponential_distribution yields differs between standard libraries; this does not.
class Gaps {
public:
    Gaps(double rate_per_s, std::uint64_t seed) : random_(seed), rate_(rate_per_s) {}
    double next() {
        const double uniform = (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53;  // in (0, 1)
        return -std::log(uniform) / rate_;
    }

private:
    std::mt19937_64 random_;
    double rate_;
};

}  // namespace

std::vector<Request> poisson_requests(const PoissonLoad& load) {
    std::vector<Request> requests(load.requests);
    Gaps gaps(load.rate_per_s, load.seed);
    double now_s = 0;
    for (Request& request : requests) {
        request = {now_s, load.prompt_tokens, load.cached_tokens, load.output_tokens};
        now_s += gaps.next();
    }
    return requests;
}

std::vector<Request> resampled(const std::vector<Request>& trace, std::uint32_t requests, double rate_per_s,
                               std::uint64_t seed) {
    std::vector<Request> out;
    if (trace.empty()) return out;
    out.reserve(requests);
    Gaps gaps(rate_per_s, seed);
    double now_s = 0;
    for (std::uint32_t i = 0; i < requests; ++i) {
        out.push_back(trace[i % trace.size()]);
        out.back().arrival_s = now_s;
        now_s += gaps.next();
    }
    return out;
}

}  // namespace hetero::sched
