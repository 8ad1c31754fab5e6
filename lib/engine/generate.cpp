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

// One sequence on its way.
class Run {
public:
    Run(const Continued& sequence, const Tokenizer& tokenizer, const GenerateOptions& options, Clock::time_point start)
        : session_(*sequence.session),
          tokens_(*sequence.tokens),
          tokenizer_(tokenizer),
          options_(options),
          sampler_(options.sampling),
          start_(start),
          text_(options.stop, sequence.on_text, out_.text) {
        out_.pending_token = sequence.pending;
        if (sequence.pending >= 0 && ends(sequence.pending)) {  // the run that is continued had come to its end
            stop(FinishReason::eos);
        } else if (options.max_tokens == 0) {
            active_ = false;
        }
    }

    [[nodiscard]] bool active() const noexcept { return active_; }

    // The token whose logits are needed next; -1 where there is none to feed.
    Result<TokenId> feed() {
        if (out_.pending_token >= 0) {
            if (session_.position() < session_.capacity()) return out_.pending_token;
            stop(FinishReason::context);
            return -1;
        }
        // The logits of the last position, where nobody kept them: its token is computed again.
        if (tokens_.empty()) return fail(Errc::usage, "there is nothing to continue: the state holds no tokens");
        HETERO_CHECK(session_.truncate(tokens_.size() - 1));
        return tokens_.back();
    }
    void fed() {
        if (out_.pending_token >= 0) tokens_.push_back(out_.pending_token);
        out_.pending_token = -1;
    }

    // Chooses the next token.
    Status take(std::span<const float> logits) {
        HETERO_TRY(const TokenId token, sampler_.next(logits, tokens_));
        return take(token);
    }
    // False where these do not tell.
    Result<bool> take(const Likeliest& likeliest) {
        const std::optional<TokenId> token = sampler_.next(likeliest, tokens_);
        if (token) HETERO_CHECK(take(*token));
        return token.has_value();
    }

    Result<Generation> finish() {
        HETERO_CHECK(text_.finish());
        return std::move(out_);
    }

private:
    Status take(TokenId token) {
        const Clock::time_point now = Clock::now();
        if (out_.token_ids.empty()) {
            out_.ttft_ms = to_milliseconds(now - start_);
        } else {
            out_.itl_ms.push_back(to_milliseconds(now - last_));
        }
        last_ = now;
        out_.pending_token = token;
        out_.token_ids.push_back(token);
        HETERO_CHECK(text_.push(tokenizer_.piece(token, !options_.show_special)));
        if (text_.stopped()) {
            stop(FinishReason::stop);
        } else if (ends(token)) {
            stop(FinishReason::eos);
        } else if (out_.token_ids.size() >= options_.max_tokens) {
            active_ = false;
        }
        return {};
    }

    [[nodiscard]] bool ends(TokenId token) const {
        const auto& eos = tokenizer_.eos();
        return !options_.ignore_eos && std::find(eos.begin(), eos.end(), token) != eos.end();
    }
    void stop(FinishReason reason) {
        out_.reason = reason;
        active_ = false;
    }

    Session& session_;
    std::vector<TokenId>& tokens_;
    const Tokenizer& tokenizer_;
    const GenerateOptions& options_;
    Sampler sampler_;
    Clock::time_point start_, last_ = start_;
    Generation out_;
    TextOut text_;
    bool active_ = true;
};

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

Result<std::vector<Generation>> generate_together(std::span<const Continued> sequences, const Tokenizer& tokenizer,
                                                  const GenerateOptions& options) {
    const Clock::time_point start = Clock::now();
    HETERO_CHECK(check(options.sampling));
    std::vector<std::unique_ptr<Run>> runs;
    for (const Continued& one : sequences) {
        HETERO_CHECK(check_start(*one.session, *one.tokens, one.first_logits));
        runs.push_back(std::make_unique<Run>(one, tokenizer, options, start));
        // Those who are told their logits choose at once, and wait for the others with a token to feed.
        if (runs.back()->active() && one.pending < 0 && !one.first_logits.empty()) {
            HETERO_CHECK(runs.back()->take(one.first_logits));
        }
    }
    const LikeliestWanted wanted = Sampler(options.sampling).wanted();
    std::vector<Session::Step> steps;
    std::vector<Run*> stepping;
    for (;;) {
        steps.clear();
        stepping.clear();
        for (std::size_t i = 0; i < runs.size(); ++i) {
            if (!runs[i]->active()) continue;
            HETERO_TRY(const TokenId token, runs[i]->feed());
            if (token < 0) continue;
            steps.push_back({sequences[i].session, token});
            stepping.push_back(runs[i].get());
        }
        if (steps.empty()) break;
        HETERO_CHECK(Session::decode_together(
            steps, wanted,
            [&](std::size_t index, const Likeliest& likeliest) {
                stepping[index]->fed();
                return stepping[index]->take(likeliest);
            },
            [&](std::size_t index, std::span<const float> logits) {
                stepping[index]->fed();
                return stepping[index]->take(logits);
            }));
    }
    std::vector<Generation> generations;
    for (const auto& run : runs) {
        HETERO_TRY(auto generation, run->finish());
        generations.push_back(std::move(generation));
    }
    return generations;
}

Result<Generation> generate(Session& session, const Tokenizer& tokenizer, std::vector<TokenId>& tokens,
                            std::span<const float> first_logits, TokenId pending, const GenerateOptions& options,
                            const std::function<Status(std::string_view)>& on_text) {
    const Continued one{&session, &tokens, first_logits, pending, on_text};
    HETERO_TRY(auto generations, generate_together({&one, 1}, tokenizer, options));
    return std::move(generations.front());
}

}  // namespace hetero::engine
