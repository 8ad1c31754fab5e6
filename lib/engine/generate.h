// Decoding until something stops it: one call for a tool.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/sampler.h"
#include "engine/session.h"
#include "kv/stream.h"
#include "tokenizer/tokenizer.h"

namespace hetero::engine {

enum class FinishReason { length, eos, stop, context };
[[nodiscard]] const char* finish_reason_name(FinishReason reason) noexcept;  // "length", "eos", "stop", "context full"

struct GenerateOptions {
    std::uint64_t max_tokens = 0;
    bool ignore_eos = false;
    std::vector<std::string> stop;  // text that ends the output; it is not shown, even when it spans tokens
    bool show_special = false;
    SamplingOptions sampling;
};

struct Generation {
    std::vector<TokenId> token_ids;  // generated, the one that ended it included
    std::string text;                // bytes; may not be UTF-8
    FinishReason reason = FinishReason::length;
    double ttft_ms = 0;          // from the call to the first token chosen
    std::vector<double> itl_ms;  // from the second token on
    TokenId pending_token = -1;  // chosen but its KV is not in the session; -1: none
};

// Continues `session`, whose cache holds `tokens`; tokens that are fed are appended to both. `first_logits` are those
// of the last position (from the state or from prefill); empty: that position is computed again. `pending` >= 0 is a
// token chosen earlier (a continued state): it is fed first and not reported again; where it is the end of the text,
// nothing is generated. A run that stops after n tokens and
// is continued with its pending token gives the tokens of one long run, sampled ones too: what is drawn depends on the
// seed and the position alone. Stop strings are looked for in this run's text only. `on_text` (may be empty) gets whole
// characters as they come; an error from it ends the run.
Result<Generation> generate(Session& session, const Tokenizer& tokenizer, std::vector<TokenId>& tokens,
                            std::span<const float> first_logits, TokenId pending, const GenerateOptions& options,
                            const std::function<Status(std::string_view)>& on_text);

// A sequence that generate_together() continues: what generate() is given.
struct Continued {
    Session* session = nullptr;
    std::vector<TokenId>* tokens = nullptr;
    std::span<const float> first_logits = {};
    TokenId pending = -1;
    std::function<Status(std::string_view)> on_text = {};
};
// Several sequences, a session and its forks, step by step together, each until it is at its end; each gets what
// generate() gives it. Of times, the first token's counts from the call, and between tokens lie the steps of all.
Result<std::vector<Generation>> generate_together(std::span<const Continued> sequences, const Tokenizer& tokenizer,
                                                  const GenerateOptions& options);

}  // namespace hetero::engine
