#include "engine/score.h"

#include <algorithm>
#include <cmath>

#include "engine/probability.h"

namespace hetero::engine {

double Score::perplexity() const { return std::exp(nll_sum / static_cast<double>(scored)); }

Result<Score> score(Session& session, std::span<const TokenId> tokens, std::uint32_t window_tokens,
                    const std::function<void(std::uint64_t done)>& on_progress, std::optional<TokenId> bos) {
    const std::size_t lead = bos ? 1 : 0;
    if (tokens.size() + lead < 2)
        return fail(Errc::usage, "{} tokens: at least two are needed to score one", tokens.size() + lead);
    if (window_tokens < 2) return fail(Errc::usage, "a window must have at least two tokens");
    const std::size_t needed =
        std::min<std::size_t>(window_tokens, tokens.size() + lead) - 1;  // the last one is only predicted
    if (needed > session.capacity()) {
        return fail(Errc::usage, "a window of {} tokens does not fit a session of {}", window_tokens,
                    session.capacity());
    }
    Score out;
    out.token_nll.reserve(tokens.size());
    const std::size_t step = window_tokens - lead;
    for (std::size_t begin = 0; begin < tokens.size(); begin += step) {
        const auto text = tokens.subspan(begin, std::min(step, tokens.size() - begin));
        std::vector<TokenId> window(text.begin(), text.end());
        if (bos) window.insert(window.begin(), *bos);
        HETERO_CHECK(session.truncate(0));
        const auto on_logits = [&](std::uint64_t position, std::span<const float> logits) -> Status {
            const std::uint64_t predicted = begin + position + 1 - lead;  // in `tokens`
            const auto target = static_cast<std::size_t>(window[position + 1]);
            if (target >= logits.size()) {
                return fail(Errc::usage, "token {} at position {} is outside the vocabulary of {}",
                            window[position + 1], predicted, logits.size());
            }
            auto total = log_sum_exp(logits);
            if (!total) return fail_with(total.error(), fmt::format("position {}", begin + position));
            out.token_nll.push_back(*total - static_cast<double>(logits[target]));
            return {};
        };
        if (window.size() > 1) {
            HETERO_CHECK(session.prefill(std::span(window).first(window.size() - 1), Logits::all, on_logits));
        }
        if (on_progress) on_progress(begin + text.size());
    }
    HETERO_CHECK(session.truncate(0));
    out.scored = out.token_nll.size();
    for (const double nll : out.token_nll) out.nll_sum += nll;
    return out;
}

}  // namespace hetero::engine
