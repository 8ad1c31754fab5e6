
#include "base/printable.h"
#include "verify.h"

namespace hetero::tool {
namespace {

Json place_json(const kv::Location& place) {
    return {{"sequence", place.sequence}, {"layer", place.layer}, {"part", kv::part_name(place.part, place.kind)},
            {"token", place.token},       {"head", place.head},   {"dim", place.dim}};
}

}  // namespace

std::string to_text(const kv::Location& place) {
    const std::string head = place.kind == kv::LayerKind::mla ? "" : fmt::format(", head {}", place.head);
    return fmt::format("sequence {}, layer {}, {}, token {}{}, dim {}", printable(place.sequence), place.layer,
                       kv::part_name(place.part, place.kind), place.token, head, place.dim);
}

Json to_json(const kv::Comparison& comparison) {
    Json document = {{"max_abs", number(comparison.max_abs)},
                     {"p99_abs", number(comparison.p99_abs)},
                     {"logits_max_abs", number(comparison.logits_max_abs)},
                     {"logits_max_abs_dp", number(comparison.logits_max_abs_dp)}};
    document["worst"] = place_json(comparison.worst);
    document["first_difference"] =
        comparison.first_difference ? place_json(*comparison.first_difference) : Json(nullptr);
    if (comparison.first_nonfinite) {
        document["nonfinite"] = place_json(*comparison.first_nonfinite);
        document["nonfinite"]["what"] = comparison.nonfinite_what;
    }
    Json& mismatches = document["mismatches"] = Json::array();
    for (const kv::Mismatch& one : comparison.mismatches) {
        mismatches.push_back({{"field", one.field}, {"a", one.left}, {"b", one.right}});
    }
    Json& parts = document["parts"] = Json::array();
    for (const kv::PartDifference& part : comparison.parts) {
        parts.push_back({{"sequence", part.sequence},
                         {"layer", part.layer},
                         {"kind", kv::kind_name(part.kind)},
                         {"part", kv::part_name(part.part, part.kind)},
                         {"bit_equal", part.bit_equal},
                         {"max_abs", number(part.max_abs)},
                         {"mean_abs", number(part.mean_abs)},
                         {"relative_l2", number(part.relative_l2)},
                         {"cosine", number(part.cosine)}});
    }
    return document;
}

std::string to_text(const kv::Comparison& comparison, bool per_layer) {
    std::string text;
    for (const kv::Mismatch& one : comparison.mismatches) {
        text += fmt::format("mismatch   {}: {} in A, {} in B\n", printable(one.field), printable(one.left),
                            printable(one.right));
    }
    if (per_layer) {
        text += fmt::format("{:<10} {:>5} {:>4} {:>8} {:>12} {:>12} {:>12} {:>10}  {}\n", "sequence", "layer", "kind",
                            "part", "max |d|", "mean |d|", "rel L2", "cosine", "bits");
        for (const kv::PartDifference& part : comparison.parts) {
            text += fmt::format("{:<10} {:>5} {:>4} {:>8} {:>12.5g} {:>12.5g} {:>12.5g} {:>10.7f}  {}\n",
                                printable(part.sequence), part.layer, kv::kind_name(part.kind),
                                kv::part_name(part.part, part.kind), part.max_abs, part.mean_abs, part.relative_l2,
                                part.cosine, part.bit_equal ? "equal" : "differ");
        }
    }
    if (comparison.first_nonfinite) {
        text += fmt::format("not finite {} at {}\n", comparison.nonfinite_what, to_text(*comparison.first_nonfinite));
    }
    text += fmt::format("elem       max |d| {:.6g}, p99 {:.6g}; worst at {}\n", comparison.max_abs, comparison.p99_abs,
                        to_text(comparison.worst));
    text += comparison.first_difference
                ? fmt::format("           first difference at {}\n", to_text(*comparison.first_difference))
                : "           bit for bit equal\n";
    if (!comparison.logits_worst.empty()) {
        text += fmt::format("logits     max |d| {:.6g}, max |dp| {:.6g} of those stored; worst at {}\n",
                            comparison.logits_max_abs, comparison.logits_max_abs_dp, comparison.logits_worst);
    }
    return text;
}

void add_to_report(Json& report, const std::optional<Drift>& measured) {
    if (!measured) {
        for (const char* name :
             {"steps", "max_abs_dp", "p99_abs_dp", "kl_mean", "kl_max", "max_abs_dlogit", "top1", "worst_step"}) {
            report[name] = nullptr;
        }
        return;
    }
    const Drift& drift = *measured;
    report["steps"] = drift.steps.size();
    report["max_abs_dp"] = number(drift.max_abs_dp);
    report["p99_abs_dp"] = number(drift.p99_abs_dp);
    report["kl_mean"] = number(drift.kl_mean);
    report["kl_max"] = number(drift.kl_max);
    report["max_abs_dlogit"] = number(drift.max_abs_dlogit);
    report["top1"] = number(drift.top1);
    report["worst_step"] = {
        {"sequence", drift.worst_sequence}, {"step", drift.worst_step}, {"token", drift.worst_token}};
}

std::string to_text(const Drift& drift) {
    return fmt::format(
        "prob       max |dp| {:.6g}, p99 {:.6g}; KL mean {:.6g}, max {:.6g}; max |dlogit| {:.6g}; top-1 {:.2f} %; {} "
        "steps\n",
        drift.max_abs_dp, drift.p99_abs_dp, drift.kl_mean, drift.kl_max, drift.max_abs_dlogit, drift.top1 * 100,
        drift.steps.size());
}

Gate apply_gate(const std::string& gate, std::uint64_t n, double p99, double max) {
    if (gate == "max") return {"max", false, max};
    constexpr std::uint64_t kEnough = 256;  // below, a 99th percentile rests on two values or fewer
    if (n < kEnough) return {"p99", true, max};
    return {"p99", false, p99};
}

}  // namespace hetero::tool
