#include <algorithm>
#include <cmath>

#include "engine/generate.h"
#include "engine/probability.h"

namespace hetero::engine {
namespace {

Result<DriftStep> compare_logits(std::span<const float> a, std::span<const float> b) {
    auto total_a = log_sum_exp(a), total_b = log_sum_exp(b);
    if (!total_a) return fail_with(total_a.error(), "first state");
    if (!total_b) return fail_with(total_b.error(), "second state");
    DriftStep step;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double log_a = a[i] - *total_a, log_b = b[i] - *total_b;
        const double p_a = std::exp(log_a), p_b = std::exp(log_b);
        step.max_abs_dp = std::max(step.max_abs_dp, std::fabs(p_b - p_a));
        step.kl += p_a * (log_a - log_b);
        step.max_abs_dlogit = std::max(step.max_abs_dlogit, std::fabs(static_cast<double>(b[i]) - a[i]));
    }
    step.kl = std::max(step.kl, 0.0);  // never negative but for rounding
    step.top1_equal = argmax(a) == argmax(b);
    return step;
}

}  // namespace

Result<std::vector<DriftStep>> measure_drift(Session& a, Session& b, std::span<const TokenId> forced,
                                             TokenId first_token, std::uint64_t steps) {
    if (a.position() != b.position()) {
        return fail(Errc::bad_input, "the states hold {} and {} tokens: they cannot be compared step by step",
                    a.position(), b.position());
    }
    const std::uint64_t count = forced.empty() ? steps : forced.size();
    const std::uint64_t room = std::min(a.capacity(), b.capacity()) - a.position();
    if (count > room) return fail(Errc::usage, "{} steps do not fit: {} positions are left", count, room);
    std::vector<DriftStep> out;
    out.reserve(count);
    TokenId token = forced.empty() ? first_token : forced.front();
    for (std::uint64_t step = 0; step < count; ++step) {
        HETERO_TRY(const std::span<const float> logits_a, a.decode(token));
        HETERO_TRY(const std::span<const float> logits_b, b.decode(token));
        if (logits_a.size() != logits_b.size()) {
            return fail(Errc::bad_input, "the models have vocabularies of {} and {} tokens", logits_a.size(),
                        logits_b.size());
        }
        auto compared = compare_logits(logits_a, logits_b);
        if (!compared) return fail_with(compared.error(), fmt::format("step {}", step));
        compared->token = token;
        out.push_back(*compared);
        if (step + 1 < count) token = forced.empty() ? argmax(logits_a) : forced[step + 1];
    }
    return out;
}

}  // namespace hetero::engine
