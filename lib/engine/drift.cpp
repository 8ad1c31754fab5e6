#include <algorithm>

#include "engine/generate.h"
#include "engine/probability.h"

namespace hetero::engine {
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
        auto compared = compare_logits(logits_a, logits_b, "first state", "second state");
        if (!compared) return fail_with(compared.error(), fmt::format("step {}", step));
        out.push_back({compared->max_abs_dp, compared->kl, compared->max_abs_dlogit, compared->top1_equal, token});
        if (step + 1 < count) token = forced.empty() ? argmax(logits_a) : forced[step + 1];
    }
    return out;
}

}  // namespace hetero::engine
