#include "engine/side_by_side.h"

#include <algorithm>

#include "engine/probability.h"

namespace hetero::engine {
namespace {

constexpr std::size_t chunk_tokens = 64;  // whose logits of one model are kept for the other

// One chunk of a window; `targets` are the tokens that it predicts.
class Chunk {
public:
    Chunk(SideBySide& out, std::size_t vocab) : out_(out), vocab_(vocab), logits_(chunk_tokens * vocab) {}

    Status run(Session& a, Session& b, std::span<const TokenId> tokens, std::span<const TokenId> targets) {
        std::size_t at = 0;
        HETERO_CHECK(a.prefill(tokens, Logits::all, [&](std::uint64_t, std::span<const float> logits) -> Status {
            std::copy(logits.begin(), logits.end(), logits_.begin() + static_cast<std::ptrdiff_t>(at++ * vocab_));
            return {};
        }));
        at = 0;
        return b.prefill(tokens, Logits::all, [&](std::uint64_t position, std::span<const float> logits) -> Status {
            const std::span<const float> of_a(logits_.data() + at * vocab_, vocab_);
            const auto target = static_cast<std::size_t>(targets[at++]);
            auto compared = compare(of_a, logits, target);
            return compared ? compared : fail_with(compared.error(), fmt::format("position {}", position));
        });
    }

private:
    Status compare(std::span<const float> of_a, std::span<const float> of_b, std::size_t target) {
        if (target >= vocab_) return fail(Errc::usage, "token {} is outside the vocabulary of {}", target, vocab_);
        HETERO_TRY(const LogitDifference difference, compare_logits(of_a, of_b, "first model", "second model"));
        out_.a.token_nll.push_back(difference.log_sum_a - static_cast<double>(of_a[target]));
        out_.b.token_nll.push_back(difference.log_sum_b - static_cast<double>(of_b[target]));
        ++out_.compared;
        out_.kl_mean += difference.kl;  // divided at the end
        out_.kl_max = std::max(out_.kl_max, difference.kl);
        out_.max_abs_dlogit = std::max(out_.max_abs_dlogit, difference.max_abs_dlogit);
        out_.max_abs_dp = std::max(out_.max_abs_dp, difference.max_abs_dp);
        out_.top1_equal += difference.top1_equal() ? 1 : 0;
        return {};
    }

    SideBySide& out_;
    std::size_t vocab_;
    std::vector<float> logits_;  // [token][vocab]
};

}  // namespace

Result<SideBySide> score_side_by_side(Session& a, Session& b, std::span<const TokenId> tokens,
                                      std::uint32_t window_tokens,
                                      const std::function<void(std::uint64_t done)>& on_progress,
                                      std::optional<TokenId> bos) {
    const std::size_t lead = bos ? 1 : 0, vocab = a.model().config.vocab_size;
    if (vocab != b.model().config.vocab_size) {
        return fail(Errc::bad_input, "the models have vocabularies of {} and {} tokens", vocab,
                    b.model().config.vocab_size);
    }
    if (tokens.size() + lead < 2)
        return fail(Errc::usage, "{} tokens: at least two are needed to score one", tokens.size() + lead);
    if (window_tokens < 2) return fail(Errc::usage, "a window must have at least two tokens");
    if (std::min<std::size_t>(window_tokens, tokens.size() + lead) - 1 > std::min(a.capacity(), b.capacity())) {
        return fail(Errc::usage, "a window of {} tokens does not fit the sessions", window_tokens);
    }
    SideBySide out;
    Chunk chunk(out, vocab);
    const std::size_t step = window_tokens - lead;
    for (std::size_t begin = 0; begin < tokens.size(); begin += step) {
        const auto text = tokens.subspan(begin, std::min(step, tokens.size() - begin));
        std::vector<TokenId> window(text.begin(), text.end());
        if (bos) window.insert(window.begin(), *bos);
        a.truncate(0);
        b.truncate(0);
        const std::span<const TokenId> all(window);
        for (std::size_t at = 0; at + 1 < window.size(); at += chunk_tokens) {
            const std::size_t count = std::min(chunk_tokens, window.size() - 1 - at);
            HETERO_CHECK(chunk.run(a, b, all.subspan(at, count), all.subspan(at + 1, count)));
            if (on_progress) on_progress(begin + std::min(at + count + 1, window.size()) - lead);
        }
    }
    a.truncate(0);
    b.truncate(0);
    for (Score* score : {&out.a, &out.b}) {
        score->scored = score->token_nll.size();
        for (const double nll : score->token_nll) score->nll_sum += nll;
    }
    out.kl_mean /= static_cast<double>(out.compared);
    return out;
}

}  // namespace hetero::engine
