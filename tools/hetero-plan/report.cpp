#include <algorithm>
#include <cmath>

#include "plan.h"

namespace hetero::tool {
namespace {

constexpr double milli = 1e3;

std::string tier_text(const plan::Candidate& candidate) {
    if (candidate.tier.empty()) return {};
    return candidate.computes_cached() ? ", prefixes computed again" : ", prefixes on the " + candidate.tier;
}

// "2x cpu-a tp1 int4 > 1x gpu-b tp4 bf16"
std::string describe(const plan::Problem& problem, const plan::Candidate& candidate) {
    std::string out;
    sched::Role role = sched::Role::both;
    for (const plan::Group& group : candidate.groups) {
        if (!out.empty()) out += group.role != role ? " > " : " + ";
        role = group.role;
        out += fmt::format("{}x {}", group.instances, problem.sides[group.side].name);
        if (group.tp > 1) out += fmt::format(" tp{}", group.tp);
        out += " " + group.dtype;
    }
    if (!plan::is_split(candidate.kind)) {
        if (candidate.kind != plan::Kind::time_sliced) out += fmt::format(", {}", sharing_name(candidate.sharing));
        if (candidate.resident.quantized) out += ", KV " + candidate.resident.name;
        return out + tier_text(candidate);
    }
    if (candidate.wire.quantized) out += ", KV " + candidate.wire.name;
    if (candidate.wire.name != candidate.resident.name) out += ", kept as " + candidate.resident.name;
    if (candidate.deployment.first_token == sched::FirstToken::decode) out += ", first token from decode";
    return out + tier_text(candidate);
}

double output_tokens_per_s(const plan::Problem& problem, const plan::Candidate& candidate) {
    const double rate =
        std::min(problem.workload.rate_per_s.value_or(candidate.goodput_per_s), candidate.goodput_per_s);
    return rate * problem.workload.output_tokens;
}

std::optional<double> usd_per_million(const plan::Problem& problem, const plan::Candidate& candidate) {
    const double tokens_per_s = output_tokens_per_s(problem, candidate);
    if (!candidate.usd_per_hour || !(tokens_per_s > 0)) return std::nullopt;
    return 1e6 * *candidate.usd_per_hour / (3600 * tokens_per_s);
}

// An upper bound: devices draw their limit all the time. nullopt where a device has none in its profile.
std::optional<double> joule_per_token(const plan::Problem& problem, const plan::Candidate& candidate) {
    double watts = 0;
    for (const plan::Group& group : candidate.groups) {
        const auto limit = problem.sides[group.side].device.power_limit_w;
        if (!limit) return std::nullopt;
        watts += *limit * group.tp * group.instances;
    }
    const double tokens_per_s = output_tokens_per_s(problem, candidate);
    if (!(tokens_per_s > 0)) return std::nullopt;
    return watts / tokens_per_s;
}

Json optional_number(const std::optional<double>& value) { return value ? number(*value) : Json(nullptr); }

// Of a goal, what is left or lacking at the percentile that is to keep it; null without a goal.
Json margin(double goal_s, double value_s) {
    return std::isfinite(goal_s) ? number((goal_s - value_s) * milli) : Json(nullptr);
}

Json group_json(const plan::Problem& problem, const plan::Group& group) {
    return {{"machine", problem.sides[group.side].name},
            {"role", sched::role_name(group.role)},
            {"instances", group.instances},
            {"tp", group.tp},
            {"dtype", group.dtype},
            {"hosts", group.hosts}};
}

Json candidate_json(const plan::Problem& problem, const plan::Candidate& candidate) {
    Json out = {{"kind", std::string(kind_name(candidate.kind))},
                {"description", describe(problem, candidate)},
                {"verified", candidate.verified},
                {"assumed", candidate.assumed}};
    Json groups = Json::array();
    for (const plan::Group& group : candidate.groups) groups.push_back(group_json(problem, group));
    out["groups"] = std::move(groups);
    const bool split = is_split(candidate.kind);
    out["sharing"] = split ? Json(nullptr) : Json(std::string(sharing_name(candidate.sharing)));
    out["kv_wire"] = split ? Json(candidate.wire.name) : Json(nullptr);
    out["kv_resident"] = candidate.resident.name;
    out["kv_certified"] = candidate.wire.certified && candidate.resident.certified;
    out["first_token"] =
        !split || candidate.deployment.first_token == sched::FirstToken::prefill ? "prefill" : "decode";
    out["inadmissible"] = candidate.inadmissible.empty() ? Json(nullptr) : Json(candidate.inadmissible);
    out["missing_bytes"] = candidate.missing_bytes > 0 ? number(std::ceil(candidate.missing_bytes)) : Json(nullptr);
    if (!candidate.inadmissible.empty()) return out;
    out["machines"] = candidate.machines;
    out["usd_per_hour"] = optional_number(candidate.usd_per_hour);
    out["capacity_per_s"] = number(candidate.capacity_per_s);
    out["binding"] = candidate.binding;
    out["ttft_alone_ms"] = number(candidate.ttft_alone_s * milli);
    out["itl_alone_ms"] = number(candidate.itl_alone_s * milli);
    out["link"] = Json(nullptr);
    if (split) {
        out["link"] = {{"state_bytes", number(candidate.state_bytes)},
                       {"transfer_ms", number(candidate.transfer_alone_s * milli)},
                       {"visible_ms", number(candidate.visible_alone_s * milli)},
                       {"convert_ms", number(candidate.convert_s * milli)},
                       {"gb_per_s", number(candidate.deployment.link.bytes_per_s / 1e9)},
                       {"source", candidate.link_source}};
    }
    out["tiering"] = Json(nullptr);
    if (!candidate.tier.empty()) {
        Json compared = Json::array();
        for (const plan::TierPrice& price : candidate.tiers)
            compared.push_back(
                {{"tier", price.tier},
                 {"ms", number(price.seconds * milli)},
                 {"missing_bytes", price.missing_bytes > 0 ? number(std::ceil(price.missing_bytes)) : Json(nullptr)}});
        out["tiering"] = {{"tier", candidate.tier},
                          {"retained_bytes", number(std::round(candidate.retained_bytes))},
                          {"compared", std::move(compared)}};
    }
    out["played"] = candidate.played;
    if (!candidate.figures) return out;
    const plan::Figures& figures = *candidate.figures;
    out["keeps_goals"] = candidate.keeps_goals;
    out["goodput_per_s"] = number(candidate.goodput_per_s);
    out["usd_per_million_tokens"] = optional_number(usd_per_million(problem, candidate));
    const auto energy = joule_per_token(problem, candidate);
    out["energy_j_per_token"] = optional_number(energy);
    out["energy_j_per_token_unknown"] =
        energy ? Json(nullptr) : Json("no profile says what these devices draw under this load");
    out["rate_per_s"] = number(figures.rate_per_s);
    out["ttft_p50_ms"] = number(figures.ttft_p50_s * milli);
    out["ttft_p99_ms"] = number(figures.ttft_p99_s * milli);
    out["itl_p50_ms"] = number(figures.itl_p50_s * milli);
    out["itl_p99_ms"] = number(figures.itl_p99_s * milli);
    out["tpot_mean_ms"] = number(figures.tpot_mean_s * milli);
    out["e2e_p50_ms"] = number(figures.e2e_p50_s * milli);
    out["e2e_p99_ms"] = number(figures.e2e_p99_s * milli);
    out["attainment"] = number(figures.attainment);
    out["ttft_margin_ms"] = margin(problem.goals.ttft_s, figures.ttft_goal_s);
    out["itl_margin_ms"] = margin(problem.goals.itl_s, figures.tpot_goal_s);
    out["output_tokens_per_s"] = number(figures.output_tokens_per_s);
    out["prefill_busy"] = number(figures.prefill_busy);
    out["decode_busy"] = number(figures.decode_busy);
    out["link_busy"] = split ? number(figures.link_busy) : Json(nullptr);
    out["batch_mean"] = number(figures.batch_mean);
    out["peak_kv_bytes"] = figures.peak_kv_bytes;
    out["stages_ms"] = {{"queue", number(figures.queue_s * milli)},
                        {"prefill", number(figures.prefill_s * milli)},
                        {"reserve", number(figures.reserve_s * milli)},
                        {"transfer", number(figures.transfer_s * milli)},
                        {"decode", number(figures.decode_s * milli)}};
    return out;
}

// Four digits, or more before the point.
std::string ms_text(double seconds) {
    const double ms = seconds * milli;
    return std::abs(ms) >= 1000 ? fmt::format("{:.0f}", ms) : fmt::format("{:.4g}", ms);
}

// What is left of a goal at the percentile that is to keep it.
std::string left_text(double goal_s, double value_s) {
    return std::isfinite(goal_s) ? ms_text(goal_s - value_s) : std::string("-");
}

std::string goal_text(double seconds) { return std::isfinite(seconds) ? ms_text(seconds) + " ms" : std::string("any"); }

}  // namespace

void report_plan(Json& report, const plan::Problem& problem, const plan::SearchResult& result,
                 const plan::Decision& decision, std::size_t rows) {
    report["verdict"] = std::string(verdict_name(decision.verdict));
    report["reasons"] = decision.reasons;
    report["warnings"] = decision.warnings;
    report["notes"] = result.notes;
    const plan::Workload& load = problem.workload;
    report["workload"] = {{"prompt_tokens", load.prompt_tokens},
                          {"cached_tokens", load.cached_tokens},
                          {"output_tokens", load.output_tokens},
                          {"rate_per_s", optional_number(load.rate_per_s)},
                          {"trace_requests", load.trace.empty() ? Json(nullptr) : Json(load.trace.size())}};
    const auto goal = [](double seconds) { return std::isfinite(seconds) ? number(seconds * milli) : Json(nullptr); };
    report["goals"] = {{"ttft_ms", goal(problem.goals.ttft_s)},
                       {"itl_ms", goal(problem.goals.itl_s)},
                       {"attainment", problem.goals.attainment}};
    report["model"] = {{"name", problem.shape.name},
                       {"parameters", number(problem.shape.stored_params)},
                       {"parameters_per_token", number(problem.shape.token_params())},
                       {"kv_bytes_per_token", number(problem.formats.front().bytes_per_token)}};
    report["chosen"] = decision.chosen ? candidate_json(problem, result.candidates[*decision.chosen]) : Json(nullptr);
    Json plans = Json::array();
    for (std::size_t i = 0; i < std::min(rows, result.candidates.size()); ++i)
        plans.push_back(candidate_json(problem, result.candidates[i]));
    report["plans"] = std::move(plans);
}

std::string plan_table(const plan::Problem& problem, const plan::SearchResult& result, const plan::Decision& decision,
                       std::size_t rows) {
    const plan::Workload& load = problem.workload;
    std::string out = fmt::format(
        "{}: {} tokens in ({} cached), {} out, {}; goals: first token {}, between tokens {}, for {:.4g} % of "
        "requests\n\n",
        problem.shape.name, load.prompt_tokens, load.cached_tokens, load.output_tokens,
        load.rate_per_s ? fmt::format("{:.4g} requests/s", *load.rate_per_s)
                        : std::string("at 80 % of what it carries"),
        goal_text(problem.goals.ttft_s), goal_text(problem.goals.itl_s), problem.goals.attainment * 100);
    constexpr auto row =
        "{} {:<13} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>7} {:>8} {:>8} {:>8} {:>8}  {:<38} {}\n";
    out += fmt::format(row, " ", "kind", "TTFT p50", "p99, ms", "left", "ITL p50", "p99, ms", "left", "good, 1/s",
                       "att., %", "link, MB", "link, ms", "USD/Mtok", "J/token", "bound by", "deployment");
    for (std::size_t i = 0; i < std::min(rows, result.candidates.size()); ++i) {
        const plan::Candidate& candidate = result.candidates[i];
        if (!candidate.figures) {
            if (candidate.inadmissible.empty()) continue;
            out += fmt::format("  {:<13} cannot be: {}\n", kind_name(candidate.kind), candidate.inadmissible);
            continue;
        }
        const plan::Figures& figures = *candidate.figures;
        const auto usd = usd_per_million(problem, candidate), joule = joule_per_token(problem, candidate);
        const bool split = is_split(candidate.kind);
        out += fmt::format(
            row, decision.chosen == i ? "*" : " ", kind_name(candidate.kind), ms_text(figures.ttft_p50_s),
            ms_text(figures.ttft_p99_s), left_text(problem.goals.ttft_s, figures.ttft_goal_s),
            ms_text(figures.itl_p50_s), ms_text(figures.itl_p99_s), left_text(problem.goals.itl_s, figures.tpot_goal_s),
            fmt::format("{:.4g}", candidate.goodput_per_s), fmt::format("{:.1f}", figures.attainment * 100),
            split ? fmt::format("{:.4g}", candidate.state_bytes / 1e6) : "-",
            split ? ms_text(candidate.transfer_alone_s) : "-", usd ? fmt::format("{:.4g}", *usd) : "?",
            joule ? fmt::format("{:.4g}", *joule) : "?", candidate.binding, describe(problem, candidate));
    }
    out +=
        "\nTTFT, ITL: played on a virtual clock, from the profiles' rates. left: of the goals, for the last request "
        "that "
        "must keep them. good: requests/s that keep the goals.\nlink: one state, bytes over rate and conversion. "
        "USD/Mtok: machines' prices (--price) by output tokens, ? without. "
        "J/token: power limits of the devices by output tokens, an upper bound; ? where no profile has one.\n";
    out += fmt::format("\n{}\n", verdict_name(decision.verdict));
    for (const std::string& line : decision.reasons) out += fmt::format("  {}\n", line);
    for (const std::string& line : decision.warnings) out += fmt::format("  note: {}\n", line);
    for (const std::string& line : result.notes) out += fmt::format("  note: {}\n", line);
    return out;
}

}  // namespace hetero::tool
