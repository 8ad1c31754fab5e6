// How well a model predicts a text: negative log-likelihood per token and perplexity.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/session.h"

namespace hetero::engine {

struct Score {
    std::uint64_t scored = 0;                 // tokens predicted: all but the first of each window, BOS included
    double nll_sum = 0;                       // nats
    std::vector<double> token_nll;            // [scored], in the order of the text
    [[nodiscard]] double perplexity() const;  // exp(nll_sum / scored)
};

// Cuts `tokens` into windows that do not overlap; each starts with an empty cache, and its first token is not scored.
// With `bos` that token comes first in every window, and all of `tokens` are scored.
// The session's cache is overwritten, and empty afterwards. Errors: usage (fewer than two tokens, a window of fewer
// than two or of more than the session holds), those of Session::prefill, and logits that are not finite (bad_input).
Result<Score> score(Session& session, std::span<const TokenId> tokens, std::uint32_t window_tokens = 1024,
                    const std::function<void(std::uint64_t done)>& on_progress = {},
                    std::optional<TokenId> bos = std::nullopt);

}  // namespace hetero::engine
