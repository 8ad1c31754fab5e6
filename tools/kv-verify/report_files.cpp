// The reports that other programs read: a table (RFC 4180) and JUnit XML.
#include <cmath>
#include <string_view>

#include "base/redact.h"
#include "common/xml_text.h"
#include "verify.h"

namespace hetero::tool {
namespace {

std::string csv_text(std::string_view text) {
    if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
    std::string out = "\"";
    for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
    return out + '"';
}

std::string csv_number(double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : ""; }

std::string csv_token(TokenId token) { return redacts() ? "" : fmt::format("{}", token); }

// "failure": the check said no; "error": it could not be made; "": passed.
std::string test_case(std::string_view name, std::string_view what, std::string_view message) {
    std::string out = fmt::format("  <testcase classname=\"kv-verify\" name=\"{}\"", xml_text(name));
    if (what.empty()) return out + "/>\n";
    return out + fmt::format(">\n    <{0} message=\"{1}\">{1}</{0}>\n  </testcase>\n", what, xml_text(message));
}

}  // namespace

std::string to_csv(const Outcome& outcome) {
    std::string out =
        "row,sequence,layer,part,head,step,position,token,max_abs,rms,relative_l2,cosine,worst_channel,channel_rms,"
        "max_abs_dp,kl,max_abs_dlogit,worst_token,p_a,p_b,top_a,top_b,nll_a,nll_b,token_text\n";
    for (const kv::PartDifference& part : outcome.comparison.parts) {
        const std::string place =
            fmt::format("{},{},{}", csv_text(part.sequence), part.layer, csv_text(kv::part_name(part.part, part.kind)));
        out += fmt::format("part,{},,,,,{},{},{},{},,,,,,,,,,,,,\n", place, csv_number(part.max_abs),
                           csv_number(part.rms), csv_number(part.relative_l2), csv_number(part.cosine));
        for (const kv::HeadDifference& head : part.heads) {
            out += fmt::format("head,{},{},,,,{},{},{},{},{},{},,,,,,,,,,,\n", place, head.head,
                               csv_number(head.max_abs), csv_number(head.rms), csv_number(head.relative_l2),
                               csv_number(head.cosine), head.worst_channel, csv_number(head.channel_rms));
        }
    }
    if (!outcome.drift) return out;
    for (const verify::AttentionError& one : outcome.drift->attention) {
        const std::string place =
            fmt::format("attention,{},{},", csv_text(outcome.reference.sequences[one.sequence].id), one.layer);
        out += fmt::format("{},,,,,,,{},,,,,,,,,,,,,,\n", place, csv_number(one.relative_l2));
        for (std::size_t head = 0; head < one.head_relative_l2.size(); ++head) {
            out += fmt::format("{},{},,,,,,{},,,,,,,,,,,,,,\n", place, head, csv_number(one.head_relative_l2[head]));
        }
    }
    for (const verify::Step& step : outcome.drift->steps) {
        const kv::Sequence& sequence = outcome.reference.sequences[step.sequence];
        out += fmt::format("step,{},,,,{},{},{},,,,,,,{},{},{},{},{},{},{},{},{},{},{}\n", csv_text(sequence.id),
                           step.step, sequence.tokens.size() + step.step, csv_token(step.fed),
                           csv_number(step.max_abs_dp), csv_number(step.kl), csv_number(step.max_abs_dlogit),
                           csv_token(step.worst), csv_number(step.p_reference), csv_number(step.p_candidate),
                           csv_token(step.top_reference), csv_token(step.top_candidate), csv_number(step.nll_reference),
                           csv_number(step.nll_candidate), csv_text(token_text(outcome, step.fed)));
    }
    return out;
}

std::string to_junit(const Outcome& outcome, const VerifyOptions& options) {
    const kv::Comparison& comparison = outcome.comparison;
    std::string cases;
    std::size_t n = 0, failures = 0, errors = 0;
    const auto add = [&](std::string_view name, std::string_view what, std::string_view message) {
        cases += test_case(name, what, message);
        ++n;
        failures += what == "failure" ? 1 : 0;
        errors += what == "error" ? 1 : 0;
    };
    const bool finite = !comparison.first_nonfinite, same = comparison.mismatches.empty();
    add("every value is finite", finite ? "" : "error",
        finite ? ""
               : fmt::format("{} at {}", comparison.nonfinite_what, verify::place_of(*comparison.first_nonfinite)));
    std::string mismatches;
    for (const kv::Mismatch& one : comparison.mismatches) {
        mismatches +=
            fmt::format("{}{}: {} in A, {} in B", mismatches.empty() ? "" : "; ", one.field, one.left, one.right);
    }
    add("the states belong together", same ? "" : "failure", mismatches);
    for (const verify::Check& check : outcome.checks) {
        const std::string name = fmt::format(
            "{}: {} {} {}{}", check.option, check.figure, check.at_least ? ">=" : "<=", check.bound,
            outcome.drift && options.kv_dtype != "auto" ? fmt::format(" (--kv-dtype {})", options.kv_dtype) : "");
        if (!check.resolved()) {
            add(name, "error",
                fmt::format("the bound {} is {} the noise floor {:.6g} of fp16 KV", check.bound,
                            check.at_least ? "above" : "below", *check.control));
        } else {
            add(name, check.passed() ? "" : "failure", check_text(check));
        }
    }
    std::string faults;
    for (const verify::Fault& fault : outcome.diagnosis.faults) faults += fault_text(fault) + "; ";
    if (!faults.empty()) cases += fmt::format("  <system-out>likely: {}</system-out>\n", xml_text(faults));
    return fmt::format(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<testsuite name=\"kv-verify\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"0\">\n{}"
        "</testsuite>\n",
        n, failures, errors, cases);
}

}  // namespace hetero::tool
