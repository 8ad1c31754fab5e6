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

std::vector<Request> as_fast(const std::vector<Request>& trace, double rate_per_s) {
    std::vector<Request> out = trace;
    if (trace.empty() || !(trace.back().arrival_s > trace.front().arrival_s)) return out;
    const double duration_s = trace.back().arrival_s - trace.front().arrival_s;
    const double stretch = static_cast<double>(trace.size()) / (rate_per_s * duration_s);
    for (Request& request : out) request.arrival_s = (request.arrival_s - trace.front().arrival_s) * stretch;
    return out;
}

std::vector<Request> busiest(const std::vector<Request>& trace, std::size_t requests) {
    if (trace.size() <= requests || requests == 0) return trace;
    std::size_t best = 0;
    const auto took_s = [&](std::size_t at) { return trace[at + requests - 1].arrival_s - trace[at].arrival_s; };
    for (std::size_t at = 1; at + requests <= trace.size(); ++at)
        if (took_s(at) < took_s(best)) best = at;
    const auto begin = trace.begin() + static_cast<std::ptrdiff_t>(best);
    return {begin, begin + static_cast<std::ptrdiff_t>(requests)};
}

}  // namespace hetero::sched
