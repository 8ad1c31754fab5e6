#include "plan/verdict.h"

#include <algorithm>
#include <cmath>

#include "plan/cost.h"

namespace hetero::plan {
namespace {

// All in one place, so that the words agree.
std::string milliseconds(double seconds) {
    const double ms = seconds * 1e3;
    return std::abs(ms) >= 1000 ? fmt::format("{:.0f} ms", ms) : fmt::format("{:.4g} ms", ms);
}

void refuse_all(const SearchResult& result, Decision& decision) {
    double least = 0;
    for (const Candidate& candidate : result.candidates) {
        if (candidate.inadmissible.empty()) continue;
        if (candidate.missing_bytes > 0 && (least == 0 || candidate.missing_bytes < least)) {
            least = candidate.missing_bytes;
            decision.reasons.insert(decision.reasons.begin(), candidate.inadmissible);
            continue;
        }
        if (std::find(decision.reasons.begin(), decision.reasons.end(), candidate.inadmissible) ==
            decision.reasons.end())
            decision.reasons.push_back(candidate.inadmissible);
    }
    if (decision.reasons.size() > 4) decision.reasons.resize(4);
    if (decision.reasons.empty()) decision.reasons.emplace_back("no device has an executable path for this model");
}

void missed_goals(const Problem& problem, const Candidate& closest, Decision& decision) {
    std::string text = fmt::format("no deployment keeps the goals; closest is {}", kind_name(closest.kind));
    if (closest.figures) {
        const Figures& figures = *closest.figures;
        text += fmt::format(": {:.1f} % of requests keep them at {:.4g} requests/s, {:.1f} % should",
                            figures.attainment * 100, figures.rate_per_s, problem.goals.attainment * 100);
        if (figures.ttft_goal_s > problem.goals.ttft_s)
            text += fmt::format(", at that percentile time to first token {}, {} too much",
                                milliseconds(figures.ttft_goal_s),
                                milliseconds(figures.ttft_goal_s - problem.goals.ttft_s));
        if (figures.tpot_goal_s > problem.goals.itl_s)
            text += fmt::format(", between tokens {}, {} too much", milliseconds(figures.tpot_goal_s),
                                milliseconds(figures.tpot_goal_s - problem.goals.itl_s));
    }
    if (problem.workload.rate_per_s && closest.capacity_per_s < *problem.workload.rate_per_s)
        text +=
            fmt::format(", at most {:.4g} of {:.4g} requests/s", closest.capacity_per_s, *problem.workload.rate_per_s);
    decision.reasons.push_back(std::move(text));
}

bool fits_one_device(const SearchResult& result) {
    return std::any_of(result.candidates.begin(), result.candidates.end(), [](const Candidate& candidate) {
        return candidate.inadmissible.empty() && !is_split(candidate.kind) && candidate.groups.front().tp == 1;
    });
}

// Why the better split is not worth it, or an empty text.
std::string against_split(const Problem& problem, const Candidate& split, const Candidate* colocated) {
    if (problem.workload.output_tokens > 8 * problem.workload.prompt_tokens)
        return fmt::format("{} tokens are generated from prompts of {}: there is little prefill to move",
                           problem.workload.output_tokens, problem.workload.prompt_tokens);
    const double latency_s = split.deployment.link.latency_s;
    if (latency_s > split.prefill_alone_s / 4)
        return fmt::format(
            "the link's latency of {} is over a quarter of a prefill of {}: route prompts of this length "
            "to one machine",
            milliseconds(latency_s), milliseconds(split.prefill_alone_s));
    const double goal = problem.goals.ttft_s;
    if (std::isfinite(goal) && split.visible_alone_s > most_visible * goal)
        return fmt::format("sending {:.4g} MB takes {} after prefill, over {:.0f} % of the {} to the first token",
                           split.state_bytes / 1e6, milliseconds(split.visible_alone_s), most_visible * 100,
                           milliseconds(goal));
    if (colocated == nullptr) return {};
    const double gain = split.goodput_per_cost() / std::max(colocated->goodput_per_cost(), 1e-300);
    const char* per = split.usd_per_hour && colocated->usd_per_hour ? "USD" : "machine";
    if (gain < 1)
        return fmt::format("split keeps the goals for {:.4g} requests/s per {}, {} for {:.4g}",
                           split.goodput_per_cost(), per, kind_name(colocated->kind), colocated->goodput_per_cost());
    if (gain < least_gain)
        return fmt::format(
            "too close to call: split gains {:.1f} % per {}, less than the {:.0f} % that the model can tell",
            (gain - 1) * 100, per, (least_gain - 1) * 100);
    return {};
}

void warn(const Problem& problem, const Candidate& split, Decision& decision) {
    if (split.figures) {
        const auto slack = [&](double busy, double other, const char* name) {
            if (busy < 0.5 && other > busy)
                decision.warnings.push_back(fmt::format(
                    "{} is busy {:.0f} % of the time: let it do part of the other stage, or give it fewer machines",
                    name, busy * 100));
        };
        slack(split.figures->prefill_busy, split.figures->decode_busy, "prefill");
        slack(split.figures->decode_busy, split.figures->prefill_busy, "decode");
    }
    const Group &p = split.first(sched::Role::prefill), &d = split.first(sched::Role::decode);
    if (d.tp > problem.shape.n_kv_heads)
        decision.warnings.push_back(fmt::format("decode on {} devices holds each of {} KV heads {:.3g} times", d.tp,
                                                problem.shape.n_kv_heads, kv_replication(problem.shape, d.tp)));
    if (p.tp != d.tp)
        decision.warnings.push_back(
            fmt::format("KV is divided {} ways for prefill and {} for decode: it is re-sharded", p.tp, d.tp));
    if (split.wire.quantized && !split.wire.certified)
        decision.warnings.push_back(
            fmt::format("KV as {} is not certified for this model: kv-calibrate", split.wire.name));
    const double computed_tokens = problem.workload.prompt_tokens - problem.workload.cached_tokens;
    const double hiding = prefill_kv_bytes_per_s(split.deployment.link.kv.bytes_per_token * computed_tokens,
                                                 std::max(split.prefill_alone_s, 1e-12));
    if (split.deployment.link.bytes_per_s < hiding)
        decision.warnings.push_back(
            fmt::format("the link carries {:.4g} GB/s, prefill makes {:.4g} GB/s of KV: it shows",
                        split.deployment.link.bytes_per_s / 1e9, hiding / 1e9));
}

// How good the rates are that the plan rests on.
void warn_of_rates(const Problem& problem, const Candidate& chosen, Decision& decision) {
    std::vector<std::size_t> seen;
    for (const Group& group : chosen.groups) {
        if (std::find(seen.begin(), seen.end(), group.side) != seen.end()) continue;
        seen.push_back(group.side);
        const Side& side = problem.sides[group.side];
        if (side.rough)
            decision.warnings.push_back(
                fmt::format("{}: its rates are rough: the profile was made by hw-probe --quick", side.name));
        if (!side.stages && !side.device.gpu && chosen.verified)
            decision.warnings.push_back(fmt::format(
                "{}: times follow from rates of its kernels, overheads left out; hw-probe --model measures this model "
                "itself",
                side.name));
    }
}

}  // namespace

std::string_view verdict_name(Verdict verdict) noexcept {
    switch (verdict) {
        case Verdict::split:
            return "SPLIT";
        case Verdict::split_unverified:
            return "SPLIT-UNVERIFIED";
        case Verdict::colocate:
            return "COLOCATE";
        case Verdict::refuse:
            return "REFUSE";
    }
    return "?";
}

Decision decide(const Problem& problem, const SearchResult& result) {
    Decision decision;
    for (std::size_t i = 0; i < result.candidates.size(); ++i) {
        const Candidate& candidate = result.candidates[i];
        if (!candidate.played) continue;
        auto& best = is_split(candidate.kind) ? decision.best_split : decision.best_colocated;
        if (!best) best = i;
    }
    if (!decision.best_split && !decision.best_colocated) {
        refuse_all(result, decision);
        return decision;
    }
    const auto at = [&](const std::optional<std::size_t>& index) {
        return index ? &result.candidates[*index] : nullptr;
    };
    const Candidate *split = at(decision.best_split), *colocated = at(decision.best_colocated);
    const bool split_keeps = split != nullptr && split->keeps_goals;
    const bool colocated_keeps = colocated != nullptr && colocated->keeps_goals;
    if (!split_keeps && !colocated_keeps) {
        const Candidate& closest =
            split == nullptr || (colocated != nullptr && colocated->figures->attainment >= split->figures->attainment)
                ? *colocated
                : *split;
        missed_goals(problem, closest, decision);
        return decision;
    }
    const auto choose = [&](Verdict verdict, const std::optional<std::size_t>& index, std::string reason) {
        decision.verdict = verdict;
        decision.chosen = index;
        decision.reasons.push_back(std::move(reason));
    };
    if (!split_keeps) {
        choose(Verdict::colocate, decision.best_colocated,
               split == nullptr ? "no split is possible or known here" : "only without a split are the goals kept");
    } else if (!colocated_keeps) {
        choose(Verdict::split, decision.best_split, "only a split keeps the goals");
    } else if (problem.workload.rate_per_s && problem.goals.any() && fits_one_device(result)) {
        choose(Verdict::colocate, decision.best_colocated,
               "the model fits one device, and without a split the goals are kept at the rate that is asked for");
    } else if (std::string why = against_split(problem, *split, colocated); !why.empty()) {
        choose(Verdict::colocate, decision.best_colocated, std::move(why));
    } else {
        choose(Verdict::split, decision.best_split,
               fmt::format("split keeps the goals for {:.2f} times the requests per {}",
                           split->goodput_per_cost() / std::max(colocated->goodput_per_cost(), 1e-300),
                           split->usd_per_hour && colocated->usd_per_hour ? "USD" : "machine"));
    }
    // https://arxiv.org/abs/2506.05508
    if (problem.shape.token_params() < 10e9 && split != nullptr)
        decision.warnings.emplace_back("below 10 billion parameters a split has seldom been found to pay");
    if (decision.chosen) warn_of_rates(problem, result.candidates[*decision.chosen], decision);
    if (decision.verdict != Verdict::split) return decision;
    warn(problem, *split, decision);
    if (!split->verified) {
        decision.verdict = Verdict::split_unverified;
        for (const std::string& line : split->assumed) decision.reasons.push_back("not measured: " + line);
    }
    return decision;
}

}  // namespace hetero::plan
