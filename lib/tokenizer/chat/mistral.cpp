// Mistral Instruct v0.1/v0.2 and Mixtral: BOS, then [INST] USER [/INST] and ASSISTANT EOS in turn; no system role.
// Source: tokenizer_config.json of mistralai/Mistral-7B-Instruct-v0.2.
#include "tokenizer/chat/chat_template.h"

namespace hetero::tokenizer {
namespace {

constexpr std::string_view kName = "mistral";

Result<std::string> format(const ChatContext& context, std::span<const ChatMessage> messages,
                           bool /*add_generation_prompt*/) {
    HETERO_CHECK(check_alternating(kName, messages));
    std::string out = context.bos;
    for (const ChatMessage& message : messages) {
        if (message.role == "user")
            out.append("[INST] ").append(message.content).append(" [/INST]");
        else if (message.role == "assistant")
            out.append(message.content).append(context.eos);
        else
            return chat_error(kName, "only the user and assistant roles are supported");
    }
    return out;
}

ChatFormatter recognize(std::string_view canonical) {
    constexpr std::string_view kText =
        "{{bos_token}}{%for message in messages%}{%if(message['role']=='user')!=(loop['index0']%2==0)%}"
        "{{raise_exception('Conversation roles must alternate user/assistant/user/assistant/...')}}{%endif%}"
        "{%if message['role']=='user'%}[INST] {{message['content']}} [/INST]"
        "{%elif message['role']=='assistant'%}{{message['content']}}{{eos_token}}"
        "{%else%}{{raise_exception('Only user and assistant roles are supported!')}}{%endif%}{%endfor%}";
    return canonical == kText ? ChatFormatter(format) : ChatFormatter{};
}

}  // namespace

const ChatTemplate kMistral{kName, recognize, [] { return ChatFormatter(format); }};

}  // namespace hetero::tokenizer
