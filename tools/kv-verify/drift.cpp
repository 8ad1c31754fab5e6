#include <algorithm>
#include <cmath>

#include "base/statistics.h"
#include "common/kv_session.h"
#include "common/prompts.h"
#include "engine/probability.h"
#include "verify.h"

namespace hetero::tool {
namespace {

using engine::Session;

Result<std::unique_ptr<Session>> make_session(const LoadedModel& loaded, const VerifyOptions& options,
                                              kernels::DType dtype, std::uint64_t capacity) {
    engine::Options engine_options;
    engine_options.threads = static_cast<int>(options.model.threads);
    engine_options.kv_dtype = dtype;
    engine_options.precision = options.model.precision();
    return Session::create(loaded.model, engine_options, capacity);
}

// What follows the sequence: the stored choice, or that of the logits at its last position.
Result<TokenId> first_token(Session& session, const kv::State& state, std::size_t index) {
    const kv::Sequence& sequence = state.header.sequences[index];
    if (sequence.pending_token >= 0) return sequence.pending_token;
    if (!sequence.logits.empty()) return engine::argmax(sequence.logits);
    HETERO_TRY(const auto logits, extend_to(session, sequence.tokens, {}, sequence.tokens));
    HETERO_CHECK(import_sequence(session, state, index));  // the last token's KV as it was stored
    return engine::argmax(logits);
}

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

Status check_room(const LoadedModel& loaded, const VerifyOptions& options, const kv::Sequence& sequence) {
    const std::uint64_t needed = sequence.tokens.size() + options.steps;
    if (needed <= loaded.identity.context_length) return {};
    return fail(Errc::bad_input, "sequence {}: {} tokens and {} steps exceed the context of {}; use a smaller --steps",
                sequence.id, sequence.tokens.size(), options.steps, loaded.identity.context_length);
}

void append(Drift& drift, const std::string& sequence, const std::vector<engine::DriftStep>& steps) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const double worst = drift.steps.empty() ? -1 : drift.max_abs_dp;
        if (steps[i].max_abs_dp > worst || std::isnan(steps[i].max_abs_dp)) {
            drift.max_abs_dp = steps[i].max_abs_dp;
            drift.worst_sequence = sequence;
            drift.worst_step = i;
            drift.worst_token = steps[i].token;
        }
        drift.steps.push_back(steps[i]);
    }
}

// NaN in any step makes the summary NaN.
void summarise(Drift& drift) {
    std::vector<double> dp, kl, dlogit, same;
    for (const engine::DriftStep& step : drift.steps) {
        dp.push_back(step.max_abs_dp);
        kl.push_back(step.kl);
        dlogit.push_back(step.max_abs_dlogit);
        same.push_back(step.top1_equal ? 1 : 0);
    }
    drift.max_abs_dp = maximum(dp);
    drift.p99_abs_dp = percentile(dp, 99);
    drift.kl_mean = mean(kl);
    drift.kl_max = maximum(kl);
    drift.max_abs_dlogit = maximum(dlogit);
    drift.top1 = mean(same);
}

}  // namespace

Result<Drift> states_drift(const LoadedModel& loaded, const VerifyOptions& options, const kv::State& a,
                           const kv::State& b) {
    HETERO_TRY(const std::vector<TokenId> forced, forced_tokens(loaded, options));
    HETERO_TRY(const kernels::DType dtype_a, resident_dtype("auto", &a.header));
    HETERO_TRY(const kernels::DType dtype_b, resident_dtype("auto", &b.header));
    Drift drift;
    for (std::size_t i = 0; i < a.header.sequences.size(); ++i) {
        const kv::Sequence& sequence = a.header.sequences[i];
        HETERO_CHECK(check_room(loaded, options, sequence));
        const auto paired = std::find_if(b.header.sequences.begin(), b.header.sequences.end(),
                                         [&](const kv::Sequence& one) { return one.id == sequence.id; });
        if (paired == b.header.sequences.end()) return fail(Errc::bad_input, "B holds no sequence '{}'", sequence.id);
        const std::uint64_t capacity = sequence.tokens.size() + options.steps;
        HETERO_TRY(auto session_a, make_session(loaded, options, dtype_a, capacity));
        HETERO_TRY(auto session_b, make_session(loaded, options, dtype_b, capacity));
        HETERO_CHECK(import_sequence(*session_a, a, i));
        HETERO_CHECK(import_sequence(*session_b, b, static_cast<std::size_t>(paired - b.header.sequences.begin())));
        HETERO_TRY(const TokenId first, first_token(*session_a, a, i));
        HETERO_TRY(const auto steps, engine::measure_drift(*session_a, *session_b, forced, first, options.steps));
        append(drift, sequence.id, steps);
    }
    summarise(drift);
    return drift;
}

Result<Drift> noise_floor(const LoadedModel& loaded, const VerifyOptions& options, const kv::State& state) {
    HETERO_TRY(const std::vector<TokenId> forced, forced_tokens(loaded, options));
    Drift drift;
    for (const kv::Sequence& sequence : state.header.sequences) {
        HETERO_CHECK(check_room(loaded, options, sequence));
        const std::uint64_t capacity = sequence.tokens.size() + options.steps;
        HETERO_TRY(auto half, make_session(loaded, options, kernels::DType::f16, capacity));
        HETERO_TRY(auto full, make_session(loaded, options, kernels::DType::f32, capacity));
        HETERO_TRY(const auto logits, extend_to(*half, {}, {}, sequence.tokens));
        HETERO_TRY([[maybe_unused]] const auto other, extend_to(*full, {}, {}, sequence.tokens));
        const TokenId first = sequence.pending_token >= 0 ? sequence.pending_token : engine::argmax(logits);
        HETERO_TRY(const auto steps, engine::measure_drift(*half, *full, forced, first, options.steps));
        append(drift, sequence.id, steps);
    }
    summarise(drift);
    return drift;
}

}  // namespace hetero::tool
