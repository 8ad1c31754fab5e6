#include "engine/generate.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "engine/stop_matcher.h"

namespace hetero::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Tokens to bytes to whole characters, minus stop strings.
class TextOut {
public:
    TextOut(const std::vector<std::string>& stops, const std::function<Status(std::string_view)>& on_text,
            std::string& text)
        : matcher_(stops), on_text_(on_text), text_(text) {}

    Status push(std::string_view bytes) { return show(utf8_.push(matcher_.push(bytes))); }
    Status finish() {
        HETERO_CHECK(show(utf8_.push(matcher_.finish())));
        return show(utf8_.finish());
    }
    [[nodiscard]] bool stopped() const noexcept { return matcher_.stopped(); }

private:
    Status show(const std::string& characters) {
        if (characters.empty()) return {};
        text_ += characters;
        return on_text_ ? on_text_(characters) : Status{};
    }
    StopMatcher matcher_;
    Utf8Stream utf8_;
    const std::function<Status(std::string_view)>& on_text_;
    std::string& text_;
};

Status check_start(const Session& session, const std::vector<TokenId>& tokens, std::span<const float> first_logits) {
    if (tokens.size() != session.position()) {
        return fail(Errc::usage, "{} tokens are given for a session that holds {}", tokens.size(), session.position());
    }
    const std::size_t vocab = session.model().config.vocab_size;
    if (!first_logits.empty() && first_logits.size() != vocab) {
        return fail(Errc::bad_input, "{} logits are given, the vocabulary has {} tokens", first_logits.size(), vocab);
    }
    return {};
}

// The logits of the last position, where nobody kept them: its token is computed again.
Result<std::span<const float>> recompute_last(Session& session, const std::vector<TokenId>& tokens) {
    if (tokens.empty()) return fail(Errc::usage, "there is nothing to continue: the state holds no tokens");
    HETERO_CHECK(session.truncate(tokens.size() - 1));
    return session.decode(tokens.back());
}

}  // namespace

const char* finish_reason_name(FinishReason reason) noexcept {
    switch (reason) {
        case FinishReason::length:
            return "length";
        case FinishReason::eos:
            return "eos";
        case FinishReason::stop:
            return "stop";
        case FinishReason::context:
            return "context full";
    }
    return "unknown";
}

Result<Generation> generate(Session& session, const Tokenizer& tokenizer, std::vector<TokenId>& tokens,
                            std::span<const float> first_logits, TokenId pending, const GenerateOptions& options,
                            const std::function<Status(std::string_view)>& on_text) {
    const Clock::time_point start = Clock::now();
    HETERO_CHECK(check(options.sampling));
    HETERO_CHECK(check_start(session, tokens, first_logits));
    Sampler sampler(options.sampling);
    Generation out;
    out.pending_token = pending;
    TextOut text(options.stop, on_text, out.text);
    std::span<const float> logits = first_logits;
    Clock::time_point last = start;
    const auto ends = [&](TokenId token) {
        const auto& eos = tokenizer.eos();
        return !options.ignore_eos && std::find(eos.begin(), eos.end(), token) != eos.end();
    };
    if (pending >= 0 && ends(pending)) {  // the run that is continued had come to its end
        out.reason = FinishReason::eos;
        return out;
    }
    while (out.token_ids.size() < options.max_tokens) {
        if (out.pending_token >= 0) {
            if (session.position() == session.capacity()) {
                out.reason = FinishReason::context;
                break;
            }
            HETERO_TRY(logits, session.decode(out.pending_token));
            tokens.push_back(out.pending_token);
            out.pending_token = -1;
        } else if (logits.empty()) {
            HETERO_TRY(logits, recompute_last(session, tokens));
        }
        HETERO_TRY(out.pending_token, sampler.next(logits, tokens));
        const Clock::time_point now = Clock::now();
        if (out.token_ids.empty()) {
            out.ttft_ms = to_milliseconds(now - start);
        } else {
            out.itl_ms.push_back(to_milliseconds(now - last));
        }
        last = now;
        const TokenId token = out.pending_token;
        out.token_ids.push_back(token);
        HETERO_CHECK(text.push(tokenizer.piece(token, !options.show_special)));
        if (text.stopped()) {
            out.reason = FinishReason::stop;
            break;
        }
        if (ends(token)) {
            out.reason = FinishReason::eos;
            break;
        }
    }
    HETERO_CHECK(text.finish());
    return out;
}

}  // namespace hetero::engine
