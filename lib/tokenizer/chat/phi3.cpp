// Phi-3.5: <|ROLE|> newline CONTENT <|end|> newline; an empty system message and unknown roles are left out.
// Source: tokenizer_config.json of microsoft/Phi-3.5-mini-instruct.
#include "tokenizer/chat/chat_template.h"

namespace hetero::tokenizer {
namespace {

Result<std::string> format(const ChatContext& context, std::span<const ChatMessage> messages,
                           bool add_generation_prompt) {
    std::string out;
    for (const ChatMessage& message : messages) {
        const bool system = message.role == "system" && !message.content.empty();
        if (system || message.role == "user" || message.role == "assistant")
            out.append("<|").append(message.role).append("|>\n").append(message.content).append("<|end|>\n");
    }
    out += add_generation_prompt ? std::string("<|assistant|>\n") : context.eos;
    return out;
}

ChatFormatter recognize(std::string_view canonical) {
    constexpr std::string_view kText =
        "{%for message in messages%}{%if message['role']=='system' and "
        "message['content']%}<|system|>\n{{message['content']}}<|end|>\n"
        "{%elif message['role']=='user'%}<|user|>\n{{message['content']}}<|end|>\n"
        "{%elif message['role']=='assistant'%}<|assistant|>\n{{message['content']}}<|end|>\n{%endif%}{%endfor%}"
        "{%if add_generation_prompt%}<|assistant|>\n{%else%}{{eos_token}}{%endif%}";
    return canonical == kText ? ChatFormatter(format) : ChatFormatter{};
}

}  // namespace

const ChatTemplate kPhi3{"phi3.5", recognize, [] { return ChatFormatter(format); }};

}  // namespace hetero::tokenizer
