#include <algorithm>
#include <cmath>

#include "base/statistics.h"
#include "common/kv_session.h"
#include "common/prompts.h"
#include "engine/probability.h"
#include "verify.h"

namespace hetero::tool {
namespace {

Result<std::vector<TokenId>> forced_tokens(const LoadedModel& loaded, const VerifyOptions& options) {
    if (options.text.empty()) return std::vector<TokenId>{};
    if (!loaded.tokenizer) return fail(Errc::bad_input, "{} has no tokenizer", options.model.path);
    HETERO_TRY(const std::string text, read_text(options.text));
    auto tokens = loaded.tokenizer->encode(text, SpecialText::plain);
    if (tokens.size() < options.steps) {
        return fail(Errc::bad_input, "{}: has {} tokens, --steps asks for {}", options.text, tokens.size(),
                    options.steps);
    }
    tokens.resize(options.steps);
    if (auto status = check_vocabulary(tokens, loaded.identity); !status) {
        return fail_with(status.error(), options.text);
    }
    return tokens;
}

Result<verify::Options> drift_options(const LoadedModel& loaded, const VerifyOptions& options, std::size_t sequences) {
    verify::Options out;
    out.steps = options.steps;
    out.threads = static_cast<int>(options.model.threads);
    out.precision = options.model.precision();
    HETERO_TRY(const std::vector<TokenId> forced, forced_tokens(loaded, options));
    if (!forced.empty()) out.forced.assign(sequences, forced);
    return out;
}

Drift summary_of(const verify::Report& report, const kv::Header& header) {
    Drift drift;
    drift.steps = report.steps;
    drift.max_abs_dp = report.summary.max_abs_dp;
    drift.p99_abs_dp = report.summary.p99_abs_dp;
    drift.kl_mean = report.summary.kl_mean;
    drift.kl_max = report.summary.kl_max;
    drift.max_abs_dlogit = report.summary.max_abs_dlogit;
    drift.top1 = report.summary.top1;
    const auto worst = std::max_element(report.steps.begin(), report.steps.end(),
                                        [](const auto& x, const auto& y) { return x.max_abs_dp < y.max_abs_dp; });
    if (worst != report.steps.end()) {
        drift.worst_sequence = header.sequences[worst->sequence].id;
        drift.worst_step = worst->step;
        drift.worst_token = worst->fed;
    }
    return drift;
}

}  // namespace

Result<Drift> states_drift(const LoadedModel& loaded, const VerifyOptions& options, const kv::State& a,
                           const kv::State& b) {
    HETERO_TRY(verify::Options drift, drift_options(loaded, options, a.header.sequences.size()));
    drift.attention = false;
    const kv::State* candidate = &b;
    HETERO_TRY(const auto reports, verify::measure(loaded.model, a, {&candidate, 1}, drift));
    return summary_of(reports.front(), a.header);
}

Result<Drift> noise_floor(const LoadedModel& loaded, const VerifyOptions& options, const kv::State& state) {
    HETERO_TRY(verify::Options drift, drift_options(loaded, options, state.header.sequences.size()));
    drift.attention = false;
    HETERO_TRY(const verify::Control control, verify::measure_control(loaded.model, state.header, drift));
    return summary_of(control.report, state.header);
}

}  // namespace hetero::tool
