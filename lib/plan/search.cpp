#include "plan/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/statistics.h"
#include "plan/candidates.h"
#include "sched/arrivals.h"

namespace hetero::plan {
namespace {

constexpr std::size_t played_of_a_kind = 6, most_of_a_kind = 16;
constexpr std::uint64_t max_devices = 16384;
constexpr std::size_t searched_requests = 20'000;  // of a trace, the busiest; the figures are those of all
constexpr std::uint32_t lone_requests = 64;        // that hardly meet each other
constexpr double least_duration_s = 1e-6;          // requests that all but coincide have no rate
constexpr double shown_load = 0.8;                 // of the goodput, where no rate was asked for

// Moments are those of the trace where it has some, else random.
std::vector<sched::Request> requests_of(const Problem& problem, const Candidate& candidate, double rate_per_s,
                                        std::uint32_t count, bool searching) {
    const Workload& load = problem.workload;
    std::vector<sched::Request> out;
    if (load.trace.empty()) {
        out = sched::poisson_requests(
            {count, rate_per_s, load.prompt_tokens, load.cached_tokens, load.output_tokens, problem.seed});
    } else if (load.trace.back().arrival_s - load.trace.front().arrival_s > least_duration_s) {
        out = sched::as_fast(load.trace, rate_per_s);
        if (searching) out = sched::busiest(out, searched_requests);
    } else {
        const std::size_t all = searching ? std::min(load.trace.size(), searched_requests) : load.trace.size();
        out = sched::resampled(load.trace, static_cast<std::uint32_t>(all), rate_per_s, problem.seed);
    }
    if (candidate.computes_cached())
        for (sched::Request& request : out) request.cached_tokens = 0;
    return out;
}

sched::Deployment deployment_of(const Candidate& candidate) {
    sched::Deployment deployment = candidate.deployment;
    for (const Group& group : candidate.groups)
        deployment.workers.insert(deployment.workers.end(), group.instances, group.worker);
    return deployment;
}

// The highest rate at which enough requests keep the goals; of estimates where there are none.
Result<double> goodput(const Problem& problem, const Candidate& candidate) {
    const double most = candidate.capacity_per_s;
    if (!problem.goals.any()) return most * 0.9;
    const sched::Deployment deployment = deployment_of(candidate);
    const auto keeps = [&](double rate, std::uint32_t requests) -> Result<bool> {
        HETERO_TRY(const sched::Outcome outcome,
                   sched::simulate(deployment, requests_of(problem, candidate, rate, requests, true),
                                   {problem.goals.ttft_s, problem.goals.itl_s, problem.goals.attainment}));
        return outcome.attainment() >= problem.goals.attainment;
    };
    double low = 0, high = most;
    const std::uint32_t count = problem.simulated_requests;
    HETERO_TRY(const bool at_all, keeps(most * 1e-3, std::min(count, lone_requests)));
    if (!at_all) return 0.0;
    low = most * 1e-3;
    HETERO_TRY(const bool at_most, keeps(most, count));
    if (at_most) return most;
    for (int i = 0; i < 9; ++i) {
        const double middle = (low + high) / 2;
        HETERO_TRY(const bool fine, keeps(middle, count));
        (fine ? low : high) = middle;
    }
    return low;
}

// Prefill has emitted it so far; where that tears the goal between tokens, decode may be the better one.
Status choose_first_token(const Problem& problem, Candidate& candidate) {
    if (!std::isfinite(problem.goals.itl_s) || candidate.goodput_per_s >= candidate.capacity_per_s) return {};
    Candidate other = candidate;
    other.deployment.first_token = sched::FirstToken::decode;
    HETERO_TRY(other.goodput_per_s, goodput(problem, other));
    if (!(other.goodput_per_s > 1.01 * candidate.goodput_per_s)) return {};
    estimate(problem, other);
    candidate = std::move(other);
    return {};
}

bool better(const Candidate& a, const Candidate& b) {
    if (a.keeps_goals != b.keeps_goals) return a.keeps_goals;
    if (a.goodput_per_cost() != b.goodput_per_cost()) return a.goodput_per_cost() > b.goodput_per_cost();
    if (a.machines != b.machines) return a.machines < b.machines;
    return a.ttft_alone_s < b.ttft_alone_s;
}

Status check(const Problem& problem) {
    const Workload& load = problem.workload;
    if (problem.sides.empty() || problem.sides.size() > max_sides)
        return fail(Errc::usage, "{} kinds of machines: one to {} can be compared", problem.sides.size(), max_sides);
    if (problem.links.size() != problem.sides.size() ||
        std::any_of(problem.links.begin(), problem.links.end(),
                    [&](const auto& from) { return from.size() != problem.sides.size(); }))
        return fail(Errc::usage, "links of other machines");
    if (problem.formats.empty()) return fail(Errc::usage, "no form of KV to plan with");
    if (load.prompt_tokens == 0 || load.output_tokens == 0) return fail(Errc::usage, "requests without tokens");
    if (load.cached_tokens >= load.prompt_tokens)
        return fail(Errc::usage, "{} of {} tokens of a prompt are cached; the last one never is", load.cached_tokens,
                    load.prompt_tokens);
    if (load.rate_per_s && !(*load.rate_per_s > 0 && std::isfinite(*load.rate_per_s)))
        return fail(Errc::usage, "a rate must be above 0, and finite");
    std::uint64_t devices = 0;
    for (const Side& side : problem.sides) devices += std::uint64_t{side.machines} * side.devices_each();
    if (devices > max_devices)
        return fail(Errc::usage, "{} devices are too many to plan for, at most {}", devices, max_devices);
    if (problem.simulated_requests == 0) return fail(Errc::usage, "no requests to play");
    if (problem.shape.n_layers == 0 || problem.shape.n_heads == 0 || problem.shape.n_kv_heads == 0)
        return fail(Errc::usage, "a model without layers");
    return {};
}

}  // namespace

std::string_view kind_name(Kind kind) noexcept {
    switch (kind) {
        case Kind::colocated:
            return "colocated";
        case Kind::time_sliced:
            return "time-sliced";
        case Kind::side_by_side:
            return "side-by-side";
        case Kind::split:
            return "split";
        case Kind::hetero_split:
            return "hetero-split";
    }
    return "?";
}

bool is_split(Kind kind) noexcept { return kind == Kind::split || kind == Kind::hetero_split; }

double Candidate::goodput_per_cost() const noexcept {
    return goodput_per_s / std::max(usd_per_hour.value_or(machines), 1e-9);
}

const Group& Candidate::first(sched::Role role) const noexcept {
    return *std::find_if(groups.begin(), groups.end(), [&](const Group& group) { return group.role == role; });
}

Result<Figures> play(const Problem& problem, const Candidate& candidate, double rate_per_s, std::uint32_t requests) {
    const std::uint32_t count = requests > 0 ? requests : problem.simulated_requests;
    HETERO_TRY(const sched::Outcome outcome,
               sched::simulate(deployment_of(candidate), requests_of(problem, candidate, rate_per_s, count, false),
                               {problem.goals.ttft_s, problem.goals.itl_s}));
    Figures out;
    out.rate_per_s = rate_per_s;
    out.ttft_mean_s = mean(outcome.ttft_s);
    out.ttft_p50_s = percentile(outcome.ttft_s, 50);
    out.ttft_p99_s = percentile(outcome.ttft_s, 99);
    out.e2e_p50_s = percentile(outcome.e2e_s, 50);
    out.e2e_p99_s = percentile(outcome.e2e_s, 99);
    out.tpot_mean_s = mean(outcome.tpot_s);
    out.ttft_goal_s = percentile(outcome.ttft_s, 100 * problem.goals.attainment);
    out.tpot_goal_s = percentile(outcome.tpot_s, 100 * problem.goals.attainment);
    out.itl_p50_s = outcome.itl.percentile_s(50);
    out.itl_p99_s = outcome.itl.percentile_s(99);
    out.attainment = outcome.attainment();
    out.prefill_busy = outcome.prefill_busy;
    out.decode_busy = outcome.decode_busy;
    out.link_busy = outcome.link_busy;
    out.batch_mean = outcome.batch_mean;
    out.queue_s = outcome.queue_mean_s;
    out.prefill_s = outcome.prefill_mean_s;
    out.reserve_s = outcome.reserve_mean_s;
    out.transfer_s = outcome.transfer_mean_s;
    out.decode_s = outcome.decode_mean_s;
    out.peak_kv_bytes = outcome.peak_kv_bytes;
    if (outcome.duration_s > 0)
        out.output_tokens_per_s = static_cast<double>(outcome.output_tokens) / outcome.duration_s;
    return out;
}

Result<SearchResult> search(const Problem& problem) {
    HETERO_CHECK(check(problem));
    SearchResult out;
    add_candidates(problem, out);
    std::stable_sort(out.candidates.begin(), out.candidates.end(), [&](const Candidate& a, const Candidate& b) {
        if (a.inadmissible.empty() != b.inadmissible.empty()) return a.inadmissible.empty();
        return promise(problem, a) > promise(problem, b);
    });
    std::map<Kind, std::size_t> played;
    std::map<Kind, double> most;  // that the first of a kind promises
    std::set<std::pair<Kind, std::vector<std::size_t>>> seen;
    for (Candidate& candidate : out.candidates) {
        if (!candidate.inadmissible.empty()) continue;
        // Of every kind the best few, and of every choice of machines the best: none is judged by another's.
        std::vector<std::size_t> sides;
        for (const Group& group : candidate.groups) sides.push_back(group.side);
        const double value = promise(problem, candidate);
        const double best = most.try_emplace(candidate.kind, value).first->second;
        const bool is_new = seen.emplace(candidate.kind, std::move(sides)).second;
        const bool other = is_new && (!is_split(candidate.kind) || value > 0.5 * best);
        if (played[candidate.kind] >= (other ? most_of_a_kind : played_of_a_kind)) {
            ++out.left_out;
            continue;
        }
        ++played[candidate.kind];
        HETERO_TRY(candidate.goodput_per_s, goodput(problem, candidate));
        if (is_split(candidate.kind) && !problem.first_token) HETERO_CHECK(choose_first_token(problem, candidate));
        candidate.played = true;
        const double shown = problem.workload.rate_per_s.value_or(
            shown_load * (candidate.goodput_per_s > 0 ? candidate.goodput_per_s : candidate.capacity_per_s));
        HETERO_TRY(candidate.figures, play(problem, candidate, shown));
        candidate.keeps_goals = problem.workload.rate_per_s
                                    ? candidate.figures->attainment >= problem.goals.attainment &&
                                          *problem.workload.rate_per_s <= candidate.capacity_per_s
                                    : candidate.goodput_per_s > 0;
    }
    if (out.left_out > 0)
        out.notes.push_back(
            fmt::format("{} more deployments promise less by estimate and were not played", out.left_out));
    std::stable_sort(out.candidates.begin(), out.candidates.end(), [](const Candidate& a, const Candidate& b) {
        if (a.played != b.played) return a.played;
        if (a.inadmissible.empty() != b.inadmissible.empty()) return a.inadmissible.empty();
        return a.played && better(a, b);
    });
    return out;
}

}  // namespace hetero::plan
