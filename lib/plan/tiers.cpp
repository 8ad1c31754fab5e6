// Where the KV of prompts' common beginnings is kept between requests. Fetching it pays where it takes less than
// computing it again (Mooncake, FAST'25, eq. 2); what a tier can hold bounds how much may be retained, and nothing
// else.
#include <algorithm>

#include "plan/candidates.h"

namespace hetero::plan {
namespace {

struct Option {
    TierPrice price;
    std::vector<sched::WorkerConfig> workers;  // [group]
    bool verified = true;
};

// In the memory of the devices, beside what is decoded.
Option in_device(const Candidate& candidate, double tokens) {
    Option out{{"device", 0, 0}, {}, true};
    for (const Group& group : candidate.groups) {
        sched::WorkerConfig& worker = out.workers.emplace_back(group.worker);
        if (worker.role == sched::Role::decode) continue;
        const double bytes = worker.kv.bytes_per_token * tokens, room = static_cast<double>(worker.kv_capacity_bytes);
        out.price.missing_bytes = std::max(out.price.missing_bytes, bytes - room);
        worker.kv_capacity_bytes = bytes < room ? static_cast<std::uint64_t>(room - bytes) : 0;
    }
    return out;
}

// In a tier of each machine that prefills; nullopt: not all of them have it.
std::optional<Option> in_tier(const Problem& problem, const Candidate& candidate, const std::string& name,
                              double tokens) {
    Option out{{name, 0, 0}, {}, true};
    for (const Group& group : candidate.groups) {
        sched::WorkerConfig& worker = out.workers.emplace_back(group.worker);
        if (worker.role == sched::Role::decode) continue;
        const auto& tiers = problem.sides[group.side].tiers;
        const auto tier = std::find_if(tiers.begin(), tiers.end(), [&](const Tier& one) { return one.name == name; });
        if (tier == tiers.end()) return std::nullopt;
        // One copy is retained; devices that share the model read their parts at once, through one way.
        worker.fetch_s_per_token = worker.kv.bytes_per_token / tier->bytes_per_s;
        out.price.seconds = std::max(out.price.seconds, problem.workload.cached_tokens * worker.fetch_s_per_token);
        out.price.missing_bytes =
            std::max(out.price.missing_bytes, worker.kv.bytes_per_token * tokens - tier->capacity_bytes);
        out.verified = out.verified && tier->verified;
    }
    return out;
}

// What the cached part of a prompt takes to compute again.
Option nowhere(const Problem& problem, const Candidate& candidate) {
    Option out{{"none", 0, 0}, {}, true};
    const double n = problem.workload.prompt_tokens, p = problem.workload.cached_tokens;
    for (const Group& group : candidate.groups) {
        out.workers.push_back(group.worker);
        if (group.worker.role == sched::Role::decode) continue;
        const auto& prefill = group.worker.prefill;
        out.price.seconds =
            std::max(out.price.seconds, prefill.seconds(n, n * n) - prefill.seconds(n - p, n * n - p * p));
    }
    return out;
}

}  // namespace

void choose_tier(const Problem& problem, Candidate& candidate) {
    const double tokens = std::max(static_cast<double>(problem.workload.retained_tokens),
                                   static_cast<double>(problem.workload.cached_tokens));
    std::vector<Option> options{in_device(candidate, tokens)};
    for (const char* name : {"host", "file"})
        if (auto option = in_tier(problem, candidate, name, tokens)) options.push_back(std::move(*option));
    options.push_back(nowhere(problem, candidate));
    std::optional<Candidate> best;
    std::vector<TierPrice> prices;
    for (const Option& option : options) {
        prices.push_back(option.price);
        Candidate one = candidate;
        one.tier = option.price.tier;
        for (std::size_t g = 0; g < one.groups.size(); ++g) one.groups[g].worker = option.workers[g];
        // A sequence must still fit beside what is retained.
        double& missing = prices.back().missing_bytes;
        for (const Group& group : one.groups) {
            const double output = group.role == sched::Role::prefill ? 0 : problem.workload.output_tokens;
            missing = std::max(missing, group.worker.kv.bytes(problem.workload.prompt_tokens + output) -
                                            static_cast<double>(group.worker.kv_capacity_bytes));
        }
        if (missing > 0) continue;
        if (!option.verified) assume(one, fmt::format("KV is read back from the {} at its specified rate", one.tier));
        if (!one.computes_cached()) one.retained_bytes = one.groups.front().worker.kv.bytes_per_token * tokens;
        estimate(problem, one);
        // As good: the one that is asked first.
        if (!best || promise(problem, one) > 1.001 * promise(problem, *best)) best = std::move(one);
    }
    if (!best) return;
    candidate = std::move(*best);
    candidate.tiers = std::move(prices);
}

}  // namespace hetero::plan
