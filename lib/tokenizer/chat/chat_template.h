// The chat templates that are implemented: one file each, one line in registry.cpp.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace hetero::tokenizer {

struct ChatContext {
    std::string bos;  // text of the tokens; empty where the model has none
    std::string eos;
};

using ChatFormatter =
    std::function<Result<std::string>(const ChatContext&, std::span<const ChatMessage>, bool add_generation_prompt)>;

// What a template file offers.
struct ChatTemplate {
    std::string_view name;
    // The formatter, where `canonical` (canonical_jinja() of a model's template) is this template; an empty function
    // where not.
    ChatFormatter (*recognize)(std::string_view canonical);
    ChatFormatter (*standard)();  // the formatter with the template's published default texts
};

[[nodiscard]] ChatFormatter find_chat_formatter(std::string_view source);  // empty: not known
[[nodiscard]] const ChatTemplate* chat_template_named(std::string_view name);
[[nodiscard]] std::string known_chat_templates();  // "chatml, gemma, ..."

// A refusal as the template's own raise_exception() gives it.
[[nodiscard]] tl::unexpected<Error> chat_error(std::string_view template_name, std::string_view what);

// Roles must be user, assistant, user, ... from `messages[0]` on.
Status check_alternating(std::string_view template_name, std::span<const ChatMessage> messages);

// Whether SHA-256 of the canonical text is this: for templates too long to stand in the source.
[[nodiscard]] bool is_canonical_digest(std::string_view canonical, std::string_view sha256_hex);

extern const ChatTemplate kChatMl, kChatMlDefaultSystem, kQwen25, kLlama3, kLlama32, kGemma2, kGemma3, kMistral, kPhi3;

}  // namespace hetero::tokenizer
