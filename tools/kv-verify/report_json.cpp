#include <cmath>
#include <utility>

#include "base/hash.h"
#include "base/redact.h"
#include "verify.h"

namespace hetero::tool {
namespace {

Json place_json(const kv::Location& place) {
    return {{"sequence", place.sequence}, {"layer", place.layer}, {"part", kv::part_name(place.part, place.kind)},
            {"token", place.token},       {"head", place.head},   {"dim", place.dim}};
}

Json interval_json(const Interval& interval) {
    if (std::isnan(interval.low) || std::isnan(interval.high)) return nullptr;
    return Json::array({number(interval.low), number(interval.high)});
}

Json part_json(const kv::PartDifference& part) {
    Json out = {{"sequence", part.sequence},
                {"layer", part.layer},
                {"kind", kv::kind_name(part.kind)},
                {"part", kv::part_name(part.part, part.kind)},
                {"bit_equal", part.bit_equal},
                {"max_abs", number(part.max_abs)},
                {"mean_abs", number(part.mean_abs)},
                {"rms", number(part.rms)},
                {"relative_l2", number(part.relative_l2)},
                {"cosine", number(part.cosine)}};
    Json& heads = out["heads"] = Json::array();
    for (const kv::HeadDifference& head : part.heads) {
        heads.push_back({{"head", head.head},
                         {"max_abs", number(head.max_abs)},
                         {"worst_token", head.worst_token},
                         {"worst_dim", head.worst_dim},
                         {"rms", number(head.rms)},
                         {"relative_l2", number(head.relative_l2)},
                         {"cosine", number(head.cosine)},
                         {"worst_channel", head.worst_channel},
                         {"channel_rms", number(head.channel_rms)},
                         {"channel_relative_l2", number(head.channel_relative_l2)}});
    }
    return out;
}

void add_elements(Json& report, const kv::Comparison& comparison) {
    report["max_abs"] = number(comparison.max_abs);
    report["p99_abs"] = number(comparison.p99_abs);
    report["logits_max_abs"] = number(comparison.logits_max_abs);
    report["logits_max_abs_dp"] = number(comparison.logits_max_abs_dp);
    report["worst"] = place_json(comparison.worst);
    report["first_difference"] = comparison.first_difference ? place_json(*comparison.first_difference) : Json(nullptr);
    if (comparison.first_nonfinite) {
        report["nonfinite"] = place_json(*comparison.first_nonfinite);
        report["nonfinite"]["what"] = comparison.nonfinite_what;
    }
    Json& mismatches = report["mismatches"] = Json::array();
    for (const kv::Mismatch& one : comparison.mismatches) {
        mismatches.push_back({{"field", one.field}, {"a", one.left}, {"b", one.right}});
    }
    Json& parts = report["parts"] = Json::array();
    for (const kv::PartDifference& part : comparison.parts) parts.push_back(part_json(part));
}

// The figures that a drift and its control have alike.
void add_summary(Json& out, const verify::Report& report) {
    const verify::Summary& summary = report.summary;
    out["steps"] = summary.n;
    out["max_abs_dp"] = number(summary.max_abs_dp);
    out["mean_abs_dp"] = number(summary.mean_abs_dp);
    out["p99_abs_dp"] = number(summary.p99_abs_dp);
    out["p99_abs_dp_interval"] = interval_json(summary.p99_abs_dp_interval);
    out["kl_mean"] = number(summary.kl_mean);
    out["kl_mean_interval"] = interval_json(summary.kl_mean_interval);
    out["kl_max"] = number(summary.kl_max);
    out["max_abs_dlogit"] = number(summary.max_abs_dlogit);
    out["top1"] = number(summary.top1);
    out["top1_interval"] = interval_json(summary.top1_interval);
    out["perplexity"] = {{"n", summary.n_scored},
                         {"reference", number(summary.perplexity_reference)},
                         {"candidate", number(summary.perplexity_candidate)},
                         {"change", number(summary.perplexity_change)},
                         {"change_interval", interval_json(summary.perplexity_change_interval)}};
    const verify::AttentionError* attention = verify::worst_attention(report);
    out["attention_max_relative_l2"] = attention != nullptr ? number(attention->relative_l2) : Json(nullptr);
}

Json token_json(TokenId token) { return redacts() ? Json(nullptr) : Json(token); }

Json step_json(const verify::Step& step, const Outcome& outcome) {
    const kv::Sequence& sequence = outcome.reference.sequences[step.sequence];
    return {{"sequence", sequence.id},
            {"step", step.step},
            {"position", sequence.tokens.size() + step.step},
            {"token", token_json(step.fed)},
            {"token_text", token_text(outcome, step.fed)},
            {"max_abs_dp", number(step.max_abs_dp)},
            {"kl", number(step.kl)},
            {"max_abs_dlogit", number(step.max_abs_dlogit)},
            {"worst",
             {{"token", token_json(step.worst)},
              {"text", token_text(outcome, step.worst)},
              {"p_a", number(step.p_reference)},
              {"p_b", number(step.p_candidate)}}},
            {"top_a", {{"token", token_json(step.top_reference)}, {"text", token_text(outcome, step.top_reference)}}},
            {"top_b", {{"token", token_json(step.top_candidate)}, {"text", token_text(outcome, step.top_candidate)}}}};
}

void add_drift(Json& report, const Outcome& outcome) {
    if (!outcome.drift) {
        for (const char* name :
             {"steps", "max_abs_dp", "mean_abs_dp", "p99_abs_dp", "p99_abs_dp_interval", "kl_mean", "kl_mean_interval",
              "kl_max", "max_abs_dlogit", "top1", "top1_interval", "perplexity", "attention_max_relative_l2",
              "worst_step", "worst_steps", "first_divergence", "attention", "control"}) {
            report[name] = nullptr;
        }
        report["drift_skipped"] = outcome.comparison.mismatches.empty() && !outcome.comparison.first_nonfinite
                                      ? "no model was given (-m)"
                                      : "the states cannot be decoded alike";
        return;
    }
    const verify::Report& drift = *outcome.drift;
    add_summary(report, drift);
    Json& worst = report["worst_steps"] = Json::array();
    for (const verify::Step& step : worst_steps(drift, 10)) worst.push_back(step_json(step, outcome));
    report["worst_step"] = worst.empty() ? Json(nullptr) : worst.front();
    const verify::Step* divergence = verify::first_divergence(drift);
    report["first_divergence"] = divergence == nullptr ? Json(nullptr) : step_json(*divergence, outcome);
    Json& attention = report["attention"] = Json::array();
    for (const verify::AttentionError& one : drift.attention) {
        Json heads = Json::array();
        for (const double head : one.head_relative_l2) heads.push_back(number(head));
        attention.push_back({{"sequence", outcome.reference.sequences[one.sequence].id},
                             {"layer", one.layer},
                             {"relative_l2", number(one.relative_l2)},
                             {"max_relative", number(one.max_relative)},
                             {"worst_step", one.worst_step},
                             {"heads", std::move(heads)}});
    }
    report["control"] = nullptr;
    if (!outcome.control) return;
    Json& control = report["control"] = Json::object();
    add_summary(control, outcome.control->report);
    control["max_abs"] = number(outcome.control->elements.max_abs);
    control["p99_abs"] = number(outcome.control->elements.p99_abs);
    const kv::PartDifference* part = verify::worst_part(outcome.control->elements);
    control["max_relative_l2"] = part != nullptr ? number(part->relative_l2) : Json(nullptr);
}

Json fault_places(const std::vector<verify::FaultPlace>& places) {
    Json out = Json::array();
    for (const verify::FaultPlace& place : places) {
        out.push_back({{"sequence", place.sequence},
                       {"layer", place.layer},
                       {"part", kv::part_name(place.part, place.kind)},
                       {"relative_l2", number(place.before)},
                       {"relative_l2_undone", number(place.after)}});
    }
    return out;
}

}  // namespace

void add_to_report(Json& report, const Outcome& outcome, const VerifyOptions& options) {
    const auto& epsilon = options.bounds.epsilon;
    report["pass"] = outcome.verdict.has_value();
    report["metric"] = outcome.metric;
    report["epsilon"] = epsilon ? number(*epsilon) : Json(nullptr);
    report["gate"] = outcome.gated.name();
    report["gate_value"] = number(outcome.gated.value);
    report["gate_n"] = outcome.gated.n;
    report["max_stands_in_for_p99"] = outcome.gated.max_stands_in;
    if (outcome.drift) {
        report["precision"] = options.model.precision_name();
        report["kv_dtype"] = options.kv_dtype;
    }
    const kv::Identity& identity = outcome.candidate.identity;
    report["identity"] = {{"arch_digest", to_hex(identity.arch_digest)},
                          {"lineage", to_hex(identity.lineage)},
                          {"weights_digest", to_hex(identity.weights_digest)}};
    for (const auto& [name, header] : {std::pair{"format_a", &outcome.reference}, {"format_b", &outcome.candidate}})
        report[name] = {{"k", schemes_text(header->k_schemes)}, {"v", schemes_text(header->v_schemes)}};
    report["floor"] = outcome.floor ? number(*outcome.floor) : Json(nullptr);
    Json& checks = report["checks"] = Json::array();
    for (const verify::Check& check : outcome.checks) {
        checks.push_back({{"option", check.option},
                          {"figure", check.figure},
                          {"value", number(check.value)},
                          {"interval", interval_json(check.interval)},
                          {"bound", number(check.bound)},
                          {"at_least", check.at_least},
                          {"n", check.n},
                          {"control", check.control ? number(*check.control) : Json(nullptr)},
                          {"where", check.where},
                          {"pass", check.passed()},
                          {"resolved", check.resolved()}});
    }
    Json& faults = report["faults"] = Json::array();
    for (const verify::Fault& fault : outcome.diagnosis.faults) {
        faults.push_back({{"name", fault.name}, {"detail", fault.detail}, {"places", fault_places(fault.places)}});
    }
    report["unexplained"] = fault_places(outcome.diagnosis.unexplained);
    add_drift(report, outcome);
    report["within_epsilon"] = nullptr;
    report["certificate"] = nullptr;
    if (outcome.drift && epsilon && outcome.metric == "prob") {
        const Proportion share = verify::within(outcome.drift->steps, *epsilon);
        report["within_epsilon"] = {{"fraction", number(share.value)}, {"interval", interval_json(share.interval)}};
        const verify::Certificate certificate = verify::certificate(outcome.drift->summary, *epsilon);
        report["certificate"] = {{"kl_max", number(certificate.kl_max)},
                                 {"bound", number(certificate.bound)},
                                 {"holds", certificate.holds()}};
    }
    add_elements(report, outcome.comparison);
}

}  // namespace hetero::tool
