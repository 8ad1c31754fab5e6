#include <algorithm>
#include <cmath>

#include "base/printable.h"
#include "base/redact.h"
#include "tokenizer/tokenizer.h"
#include "verify.h"

namespace hetero::tool {
namespace {

std::string interval_text(const Interval& interval) {
    if (std::isnan(interval.low) || std::isnan(interval.high)) return "";
    return fmt::format("{:.4g} .. {:.4g}", interval.low, interval.high);
}

std::string layers_text(const kv::Comparison& comparison) {
    std::string text = fmt::format("{:<10} {:>5} {:>4} {:>8} {:>12} {:>12} {:>12} {:>12} {:>10}  {}\n", "sequence",
                                   "layer", "kind", "part", "max |d|", "mean |d|", "RMS", "rel L2", "cosine", "bits");
    for (const kv::PartDifference& part : comparison.parts) {
        text += fmt::format("{:<10} {:>5} {:>4} {:>8} {:>12.5g} {:>12.5g} {:>12.5g} {:>12.5g} {:>10.7f}  {}\n",
                            printable(part.sequence), part.layer, kv::kind_name(part.kind),
                            kv::part_name(part.part, part.kind), part.max_abs, part.mean_abs, part.rms,
                            part.relative_l2, part.cosine, part.bit_equal ? "equal" : "differ");
        if (part.bit_equal || part.heads.size() < 2) continue;
        for (const kv::HeadDifference& head : part.heads) {
            text += fmt::format("{:>29} {:>12.5g} {:>12} {:>12.5g} {:>12.5g} {:>10.7f}  worst channel {}: {:.5g}\n",
                                fmt::format("head {}", head.head), head.max_abs, "", head.rms, head.relative_l2,
                                head.cosine, head.worst_channel, head.channel_rms);
        }
    }
    return text;
}

std::string attention_text(const Outcome& outcome) {
    std::string text = fmt::format("{:<10} {:>5} {:>14} {:>14} {:>10}  {}\n", "sequence", "layer", "attention",
                                   "largest", "at step", "worst head");
    for (const verify::AttentionError& one : outcome.drift->attention) {
        const auto worst = std::max_element(one.head_relative_l2.begin(), one.head_relative_l2.end());
        const bool any = worst != one.head_relative_l2.end();
        text += fmt::format("{:<10} {:>5} {:>14.5g} {:>14.5g} {:>10}  {}\n",
                            printable(outcome.reference.sequences[one.sequence].id), one.layer, one.relative_l2,
                            one.max_relative, one.worst_step,
                            any ? fmt::format("{}: {:.5g}", worst - one.head_relative_l2.begin(), *worst) : "");
    }
    return text;
}

std::string elements_text(const kv::Comparison& comparison, bool per_layer) {
    std::string text;
    for (const kv::Mismatch& one : comparison.mismatches) {
        text += fmt::format("mismatch   {}: {} in A, {} in B\n", printable(one.field), printable(one.left),
                            printable(one.right));
    }
    if (per_layer) text += layers_text(comparison);
    if (comparison.first_nonfinite) {
        text += fmt::format("not finite {} at {}\n", comparison.nonfinite_what,
                            verify::place_of(*comparison.first_nonfinite));
    }
    text += fmt::format("elem       max |d| {:.6g}, p99 {:.6g}; worst at {}\n", comparison.max_abs, comparison.p99_abs,
                        verify::place_of(comparison.worst));
    if (const kv::PartDifference* part = verify::worst_part(comparison); part != nullptr && part->relative_l2 > 0) {
        text += fmt::format("           relative RMS at most {:.6g}, at {}; cosine {:.7f}\n", part->relative_l2,
                            verify::place_of(*part), part->cosine);
    }
    text += comparison.first_difference
                ? fmt::format("           first difference at {}\n", verify::place_of(*comparison.first_difference))
                : "           bit for bit equal\n";
    if (!comparison.logits_worst.empty()) {
        text += fmt::format("logits     max |d| {:.6g}, max |dp| {:.6g} of those stored; worst at {}\n",
                            comparison.logits_max_abs, comparison.logits_max_abs_dp, comparison.logits_worst);
    }
    return text;
}

// One figure, its interval, and the same figure of the control.
class Table {
public:
    explicit Table(const Outcome& outcome) : outcome_(outcome) {
        text_ = fmt::format("{:<26} {:>12}   {:<26} {:>12}\n", fmt::format("over {} steps", outcome.drift->summary.n),
                            "", "95 % interval", "fp16 control");
    }
    template <class Figure>
    void add(std::string_view name, const Interval& interval, Figure figure) {
        text_ +=
            fmt::format("{:<26} {:>12.6g}   {:<26} {:>12}\n", name, figure(*outcome_.drift), interval_text(interval),
                        outcome_.control ? fmt::format("{:.6g}", figure(outcome_.control->report)) : "unknown");
    }
    [[nodiscard]] std::string take() { return std::move(text_); }

private:
    const Outcome& outcome_;
    std::string text_;
};

std::string step_text(const Outcome& outcome, const verify::Step& step) {
    const std::uint64_t position = outcome.reference.sequences[step.sequence].tokens.size() + step.step;
    return fmt::format("{} (position {}), after {}", verify::place_of(step, outcome.reference), position,
                       token_text(outcome, step.fed));
}

std::string drift_text(const Outcome& outcome, const VerifyOptions& options, bool per_layer) {
    using verify::Report;
    const Report& drift = *outcome.drift;
    const verify::Summary& summary = drift.summary;
    Table table(outcome);
    table.add("E_p mean", {}, [](const Report& one) { return one.summary.mean_abs_dp; });
    table.add("E_p p99", summary.p99_abs_dp_interval, [](const Report& one) { return one.summary.p99_abs_dp; });
    table.add("E_p max", {}, [](const Report& one) { return one.summary.max_abs_dp; });
    table.add("KL mean, nats", summary.kl_mean_interval, [](const Report& one) { return one.summary.kl_mean; });
    table.add("KL max, nats", {}, [](const Report& one) { return one.summary.kl_max; });
    table.add("|dlogit| max", {}, [](const Report& one) { return one.summary.max_abs_dlogit; });
    table.add("top-1 agreement", summary.top1_interval, [](const Report& one) { return one.summary.top1; });
    table.add("perplexity of A", {}, [](const Report& one) { return one.summary.perplexity_reference; });
    table.add("perplexity of B", {}, [](const Report& one) { return one.summary.perplexity_candidate; });
    table.add("perplexity, change", summary.perplexity_change_interval,
              [](const Report& one) { return one.summary.perplexity_change; });
    table.add("attention, worst layer", {}, [](const Report& one) {
        const verify::AttentionError* worst = verify::worst_attention(one);
        return worst == nullptr ? 0 : worst->relative_l2;
    });
    std::string text = table.take();
    if (options.kv_dtype != "auto") {
        text += fmt::format("resident   B is decoded with its K and V kept as {}, and so are those of the tokens fed\n",
                            options.kv_dtype);
    }
    if (per_layer) text += attention_text(outcome);
    for (const verify::Step& step : worst_steps(drift, per_layer ? 10 : 3)) {
        if (step.max_abs_dp == 0) break;
        text += fmt::format("worst      {}: {} {:.4g} -> {:.4g}; first choice {} -> {}\n", step_text(outcome, step),
                            token_text(outcome, step.worst), step.p_reference, step.p_candidate,
                            token_text(outcome, step.top_reference), token_text(outcome, step.top_candidate));
    }
    const verify::Step* divergence = verify::first_divergence(drift);
    text += divergence == nullptr ? "diverges   nowhere: every first choice is the same\n"
                                  : fmt::format("diverges   first at {}: {} -> {}\n", step_text(outcome, *divergence),
                                                token_text(outcome, divergence->top_reference),
                                                token_text(outcome, divergence->top_candidate));
    if (options.bounds.epsilon && outcome.metric == "prob") {
        const double epsilon = *options.bounds.epsilon;
        const Proportion share = verify::within(drift.steps, epsilon);
        text += fmt::format("within     {:.6g} of the steps have E_p <= {} ({})\n", share.value, epsilon,
                            interval_text(share.interval));
        const verify::Certificate certificate = verify::certificate(summary, epsilon);
        text += fmt::format("certified  {}: max KL {:.6g}, 2 epsilon^2 = {:.6g}\n", certificate.holds() ? "yes" : "no",
                            certificate.kl_max, certificate.bound);
    }
    text += outcome.floor ? fmt::format("floor      {:.6g}\n", *outcome.floor)
                          : "floor      unknown (--floor auto measures it)\n";
    return text;
}

std::string places_text(const std::vector<verify::FaultPlace>& places) {
    std::string text;
    for (std::size_t i = 0; i < places.size() && i < 6; ++i) {
        text += fmt::format("{}layer {} {}", i == 0 ? "" : ", ", places[i].layer,
                            kv::part_name(places[i].part, places[i].kind));
    }
    return places.size() > 6 ? fmt::format("{} and {} more", text, places.size() - 6) : text;
}

std::string diagnosis_text(const Outcome& outcome) {
    std::string text;
    for (const verify::Fault& fault : outcome.diagnosis.faults) {
        const verify::FaultPlace& first = fault.places.front();
        text += fmt::format("likely     {}: undone, the error falls from {:.4g} to {:.4g} ({})\n", fault_text(fault),
                            first.before, first.after, places_text(fault.places));
    }
    if (!outcome.diagnosis.unexplained.empty() && !outcome.verdict) {
        text += fmt::format("unknown    no known fault explains the error of {}\n",
                            places_text(outcome.diagnosis.unexplained));
    }
    return text;
}

}  // namespace

std::string token_text(const Outcome& outcome, TokenId token) {
    if (redacts()) return "(redacted)";
    if (!outcome.tokenizer) return fmt::format("token {}", token);
    return Json(to_valid_utf8(outcome.tokenizer->piece(token, false))).dump(-1, ' ', true);
}

std::vector<verify::Step> worst_steps(const verify::Report& report, std::size_t n) {
    std::vector<verify::Step> steps = report.steps;
    n = std::min(n, steps.size());
    std::partial_sort(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(n), steps.end(),
                      [](const verify::Step& x, const verify::Step& y) {
                          if (x.max_abs_dp != y.max_abs_dp) return x.max_abs_dp > y.max_abs_dp;
                          return x.sequence != y.sequence ? x.sequence < y.sequence : x.step < y.step;
                      });
    steps.resize(n);
    return steps;
}

std::string fault_text(const verify::Fault& fault) {
    return fault.detail.empty() ? fault.name : fmt::format("{} ({})", fault.name, fault.detail);
}

std::string check_text(const verify::Check& check) {
    return fmt::format(
        "{} is {:.6g}, {} {}{}", check.figure, check.value, check.at_least ? "required are" : "allowed are",
        check.bound,
        check.where.empty() ? "" : fmt::format("; {} {}", check.at_least ? "first at" : "worst at", check.where));
}

std::string to_text(const Outcome& outcome, const VerifyOptions& options, bool per_layer) {
    std::string text;
    for (const verify::Check& check : outcome.checks) {
        if (check.passed() && check.resolved()) continue;
        text +=
            fmt::format("{} {}: {}\n", check.resolved() ? "failed    " : "unresolved", check.option, check_text(check));
    }
    text += elements_text(outcome.comparison, per_layer);
    if (outcome.drift) text += drift_text(outcome, options, per_layer);
    text += diagnosis_text(outcome);
    for (const verify::Check& check : outcome.checks) {
        text += fmt::format("check      {:<10} {} {:.6g} {} {} over {} values{}: {}\n", check.option, check.figure,
                            check.value, check.at_least ? ">=" : "<=", check.bound, check.n,
                            check.control ? fmt::format(", fp16 {:.6g}", *check.control) : "",
                            check.passed() ? "ok" : "FAILED");
    }
    text += fmt::format("gate       {} {} of {} values: {:.6g}{}\n", outcome.metric, outcome.gated.name(),
                        outcome.gated.n, outcome.gated.value,
                        outcome.gated.max_stands_in ? " (the maximum, as they are fewer than 256)" : "");
    return text + (outcome.verdict ? "PASS\n" : "FAIL\n");
}

}  // namespace hetero::tool
