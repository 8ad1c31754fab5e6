#include "verify/checks.h"

#include <algorithm>
#include <cmath>

#include "base/printable.h"

namespace hetero::verify {
namespace {

constexpr std::uint64_t enough = 256;  // below, a 99th percentile rests on two values or fewer

const Step* worst_step(const Report& report, double Step::*figure) {
    const auto worst = std::max_element(report.steps.begin(), report.steps.end(), [&](const Step& x, const Step& y) {
        return x.*figure < y.*figure || (std::isnan(y.*figure) && !std::isnan(x.*figure));
    });
    return worst == report.steps.end() ? nullptr : &*worst;
}

class Holder {
public:
    explicit Holder(const Measured& measured) : measured_(measured) {}

    // `figure` gives the value of a report, and of the control where there is one.
    template <class Figure>
    Check& add(const char* option, std::string name, double bound, std::uint64_t n, Figure figure) {
        Check& check = add_stored(option, std::move(name), bound, n, figure(*measured_.report));
        if (measured_.control != nullptr) check.control = figure(measured_.control->report);
        return check;
    }
    Check& add_stored(const char* option, std::string name, double bound, std::uint64_t n, double value) {
        Check check;
        check.option = option;
        check.figure = std::move(name);
        check.value = value;
        check.bound = bound;
        check.n = n;
        checks_.push_back(std::move(check));
        return checks_.back();
    }
    [[nodiscard]] std::string at(double Step::*figure) const {
        const Step* step = worst_step(*measured_.report, figure);
        return step == nullptr ? "" : place_of(*step, *measured_.reference);
    }
    std::vector<Check> take() { return std::move(checks_); }

private:
    const Measured& measured_;
    std::vector<Check> checks_;
};

void hold_drift(const Bounds& bounds, const Measured& measured, Holder& holder) {
    const Report& report = *measured.report;
    const Summary& summary = report.summary;
    if (bounds.epsilon && !bounds.elements) {
        const Gated gated = apply(bounds.gate, summary);
        Check& check =
            holder.add("epsilon", fmt::format("{} |dp|", gated.max_stands_in ? "max" : gated.name()), *bounds.epsilon,
                       summary.n, [&](const Report& one) { return apply(bounds.gate, one.summary).value; });
        if (gated.gate == Gate::p99 && !gated.max_stands_in) check.interval = summary.p99_abs_dp_interval;
        check.where = holder.at(&Step::max_abs_dp);
        if (measured.floor) check.control = measured.floor;
        // The first token comes from the stored logits, not from K and V.
        holder
            .add_stored("epsilon", "max |dp| of the stored logits", *bounds.epsilon,
                        measured.reference->sequences.size(), measured.comparison->logits_max_abs_dp)
            .where = measured.comparison->logits_worst;
    }
    if (const auto bound = bounds.kl_max ? bounds.kl_max : bounds.elements ? std::nullopt : bounds.epsilon) {
        holder
            .add(bounds.kl_max ? "kl-max" : "epsilon", "max KL", *bound, summary.n,
                 [](const Report& one) { return one.summary.kl_max; })
            .where = holder.at(&Step::kl);
    }
    if (bounds.kl) {
        holder.add("kl", "mean KL", *bounds.kl, summary.n, [](const Report& one) { return one.summary.kl_mean; })
            .interval = summary.kl_mean_interval;
    }
    if (bounds.top1) {
        Check& check = holder.add("top1", "top-1 agreement", *bounds.top1, summary.n,
                                  [](const Report& one) { return one.summary.top1; });
        check.at_least = true;
        check.interval = summary.top1_interval;
        if (const Step* differs = first_divergence(report)) check.where = place_of(*differs, *measured.reference);
    }
    if (bounds.logit) {
        holder
            .add("logit", "max |dlogit|", *bounds.logit, summary.n,
                 [](const Report& one) { return one.summary.max_abs_dlogit; })
            .where = holder.at(&Step::max_abs_dlogit);
    }
    if (bounds.perplexity) {
        Check& check = holder.add("perplexity", "change of perplexity", *bounds.perplexity, summary.n_scored,
                                  [](const Report& one) { return std::fabs(one.summary.perplexity_change); });
        check.interval = summary.perplexity_change_interval;
    }
    if (bounds.attention) {
        Check& check = holder.add("attention", "max relative L2 of attention", *bounds.attention,
                                  report.attention.size(), [](const Report& one) {
                                      const AttentionError* worst = worst_attention(one);
                                      return worst == nullptr ? 0 : worst->relative_l2;
                                  });
        if (const AttentionError* worst = worst_attention(report)) {
            check.where = fmt::format("sequence {}, layer {}",
                                      printable(measured.reference->sequences[worst->sequence].id), worst->layer);
        }
    }
}

void hold_stored(const Bounds& bounds, const Measured& measured, Holder& holder) {
    const kv::Comparison& comparison = *measured.comparison;
    const Gated gated = apply(bounds.gate, comparison);
    if (bounds.epsilon && bounds.elements) {
        holder
            .add_stored("epsilon", fmt::format("{} |d|", gated.max_stands_in ? "max" : gated.name()), *bounds.epsilon,
                        gated.n, gated.value)
            .where = place_of(comparison.worst);
        holder
            .add_stored("epsilon", "max |d| of the stored logits", *bounds.epsilon,
                        measured.reference->sequences.size(), comparison.logits_max_abs)
            .where = comparison.logits_worst;
    }
    if (bounds.elem) {
        holder.add_stored("elem", "max |d|", *bounds.elem, gated.n, comparison.max_abs).where =
            place_of(comparison.worst);
    }
    if (const kv::PartDifference* part = worst_part(comparison); bounds.rms && part != nullptr) {
        holder.add_stored("rms", "max relative RMS of a part", *bounds.rms, part->elements, part->relative_l2).where =
            place_of(*part);
    }
}

}  // namespace

Gated apply(Gate gate, std::uint64_t n, double p99, double max) {
    if (gate == Gate::max) return {gate, false, n, max};
    return n < enough ? Gated{gate, true, n, max} : Gated{gate, false, n, p99};
}

Gated apply(Gate gate, const Summary& summary) {
    return apply(gate, summary.n, summary.p99_abs_dp, summary.max_abs_dp);
}

Gated apply(Gate gate, const kv::Comparison& comparison) {
    std::uint64_t n = 0;
    for (const kv::PartDifference& part : comparison.parts) n += part.elements;
    return apply(gate, n, comparison.p99_abs, comparison.max_abs);
}

std::vector<Check> hold(const Bounds& bounds, const Measured& measured) {
    Holder holder(measured);
    hold_stored(bounds, measured, holder);
    if (measured.report != nullptr) hold_drift(bounds, measured, holder);
    return holder.take();
}

const Step* first_divergence(const Report& report) {
    const auto found =
        std::find_if(report.steps.begin(), report.steps.end(), [](const Step& step) { return !step.top1_equal(); });
    return found == report.steps.end() ? nullptr : &*found;
}

const AttentionError* worst_attention(const Report& report) {
    const auto worst = std::max_element(
        report.attention.begin(), report.attention.end(),
        [](const AttentionError& x, const AttentionError& y) { return x.relative_l2 < y.relative_l2; });
    return worst == report.attention.end() ? nullptr : &*worst;
}

const kv::PartDifference* worst_part(const kv::Comparison& comparison) {
    const auto worst = std::max_element(
        comparison.parts.begin(), comparison.parts.end(),
        [](const kv::PartDifference& x, const kv::PartDifference& y) { return x.relative_l2 < y.relative_l2; });
    return worst == comparison.parts.end() ? nullptr : &*worst;
}

std::string place_of(const Step& step, const kv::Header& reference) {
    return fmt::format("sequence {}, step {}", printable(reference.sequences[step.sequence].id), step.step);
}

std::string place_of(const kv::Location& place) {
    const std::string head = place.kind == kv::LayerKind::mla ? "" : fmt::format(", head {}", place.head);
    return fmt::format("sequence {}, layer {}, {}, token {}{}, dim {}", printable(place.sequence), place.layer,
                       kv::part_name(place.part, place.kind), place.token, head, place.dim);
}

std::string place_of(const kv::PartDifference& part) {
    return fmt::format("sequence {}, layer {}, {}", printable(part.sequence), part.layer,
                       kv::part_name(part.part, part.kind));
}

Certificate certificate(const Summary& summary, double epsilon) { return {summary.kl_max, 2 * epsilon * epsilon}; }

}  // namespace hetero::verify
