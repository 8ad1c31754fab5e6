// Gemma: <start_of_turn>ROLE newline, trimmed CONTENT, <end_of_turn> newline; the assistant is called "model". Gemma
// and Gemma 2 refuse system messages, Gemma 3 puts them before the first user turn. Sources: tokenizer_config.json of
// google/gemma-7b-it, google/gemma-2-2b-it, google/gemma-3-1b-it.
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/chat/jinja.h"

namespace hetero::tokenizer {
namespace {

void turn(std::string& out, std::string_view role, std::string_view prefix, std::string_view content) {
    out.append("<start_of_turn>").append(role == "assistant" ? std::string_view("model") : role).append("\n");
    out.append(prefix).append(trim(content)).append("<end_of_turn>\n");
}

ChatFormatter gemma2(bool bos) {
    return [bos](const ChatContext& context, std::span<const ChatMessage> messages,
                 bool add_generation_prompt) -> Result<std::string> {
        if (messages.empty()) return chat_error("gemma2", "there are no messages");
        if (messages[0].role == "system") return chat_error("gemma2", "the system role is not supported");
        HETERO_CHECK(check_alternating("gemma2", messages));
        std::string out = bos ? context.bos : std::string();
        for (const ChatMessage& message : messages) turn(out, message.role, "", message.content);
        if (add_generation_prompt) out += "<start_of_turn>model\n";
        return out;
    };
}

ChatFormatter recognize_gemma2(std::string_view canonical) {
    constexpr std::string_view kRest =
        "{%if messages[0]['role']=='system'%}{{raise_exception('System role not supported')}}{%endif%}"
        "{%for message in messages%}{%if(message['role']=='user')!=(loop['index0']%2==0)%}"
        "{{raise_exception('Conversation roles must alternate user/assistant/user/assistant/...')}}{%endif%}"
        "{%if(message['role']=='assistant')%}{%set role='model'%}{%else%}{%set role=message['role']%}{%endif%}"
        "<start_of_turn>{{role}}\n{{message['content']|trim}}<end_of_turn>\n{%endfor%}"
        "{%if add_generation_prompt%}<start_of_turn>model\n{%endif%}";
    constexpr std::string_view kBos = "{{bos_token}}";
    const bool bos = canonical.starts_with(kBos);
    if (bos) canonical.remove_prefix(kBos.size());
    return canonical == kRest ? gemma2(bos) : ChatFormatter{};
}

Result<std::string> gemma3(const ChatContext& context, std::span<const ChatMessage> messages,
                           bool add_generation_prompt) {
    if (messages.empty()) return chat_error("gemma3", "there are no messages");
    std::string prefix;
    if (messages[0].role == "system") {
        prefix = messages[0].content + "\n\n";
        messages = messages.subspan(1);
    }
    HETERO_CHECK(check_alternating("gemma3", messages));
    std::string out = context.bos;
    for (std::size_t i = 0; i < messages.size(); ++i)
        turn(out, messages[i].role, i == 0 ? std::string_view(prefix) : std::string_view(), messages[i].content);
    if (add_generation_prompt) out += "<start_of_turn>model\n";
    return out;
}

ChatFormatter recognize_gemma3(std::string_view canonical) {
    return is_canonical_digest(canonical, "13469d102f0cc8bafb9560da4b2d25830c3641e6e57404fca8881fe7c8e0575a")
               ? ChatFormatter(gemma3)
               : ChatFormatter{};
}

}  // namespace

const ChatTemplate kGemma2{"gemma2", recognize_gemma2, [] { return gemma2(true); }};
const ChatTemplate kGemma3{"gemma3", recognize_gemma3, [] { return ChatFormatter(gemma3); }};

}  // namespace hetero::tokenizer
