// ChatML: <|im_start|>ROLE newline CONTENT <|im_end|> newline. The published templates differ in what stands before the
// first message: nothing, the BOS token, or a system message of their own where the conversation has none (SmolLM2,
// Qwen2).
#include "tokenizer/chat/chat_template.h"

namespace hetero::tokenizer {
namespace {

constexpr std::string_view kSmolLm2System = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

struct Style {
    bool bos = false;
    std::optional<std::string> default_system;
};

ChatFormatter formatter(Style style) {
    return [style](const ChatContext& context, std::span<const ChatMessage> messages,
                   bool add_generation_prompt) -> Result<std::string> {
        std::string out;
        const auto turn = [&](std::string_view role, std::string_view content) {
            out.append("<|im_start|>").append(role).append("\n").append(content).append("<|im_end|>\n");
        };
        if (style.bos) out += context.bos;
        if (style.default_system && !messages.empty() && messages[0].role != "system")
            turn("system", *style.default_system);
        for (const ChatMessage& message : messages) turn(message.role, message.content);
        if (add_generation_prompt) out += "<|im_start|>assistant\n";
        return out;
    };
}

ChatFormatter recognize_plain(std::string_view canonical) {
    constexpr std::string_view kLoop =
        "{%for message in messages%}<|im_start|>{{message['role']}}\n{{message['content']}}<|im_end|>\n{%endfor%}"
        "{%if add_generation_prompt%}<|im_start|>assistant\n{%endif%}";
    constexpr std::string_view kShortLoop =
        "{%for m in messages%}<|im_start|>{{m['role']}}\n{{m['content']}}<|im_end|>\n{%endfor%}"
        "{%if add_generation_prompt%}<|im_start|>assistant\n{%endif%}";
    constexpr std::string_view kGuard =
        "{%if not add_generation_prompt is defined%}{%set add_generation_prompt=false%}{%endif%}";
    constexpr std::string_view kBos = "{{bos_token}}";
    Style style;
    if (canonical.starts_with(kBos)) {
        style.bos = true;
        canonical.remove_prefix(kBos.size());
    }
    if (canonical.starts_with(kGuard)) canonical.remove_prefix(kGuard.size());
    return canonical == kLoop || canonical == kShortLoop ? formatter(style) : ChatFormatter{};
}

ChatFormatter recognize_default_system(std::string_view canonical) {
    constexpr std::string_view kHead =
        "{%for message in messages%}{%if loop['first']and messages[0]['role']!='system'%}<|im_start|>system\n";
    constexpr std::string_view kTail =
        "<|im_end|>\n{%endif%}<|im_start|>{{message['role']}}\n{{message['content']}}<|im_end|>\n{%endfor%}"
        "{%if add_generation_prompt%}<|im_start|>assistant\n{%endif%}";
    if (canonical.size() < kHead.size() + kTail.size() || !canonical.starts_with(kHead) || !canonical.ends_with(kTail))
        return {};
    const std::string_view system = canonical.substr(kHead.size(), canonical.size() - kHead.size() - kTail.size());
    if (system.find_first_of("{\\") != std::string_view::npos) return {};  // a tag or an escape: not a plain text
    return formatter({false, std::string(system)});
}

}  // namespace

const ChatTemplate kChatMl{"chatml", recognize_plain, [] { return formatter({}); }};
const ChatTemplate kChatMlDefaultSystem{"chatml-default-system", recognize_default_system, [] {
                                            return formatter({false, std::string(kSmolLm2System)});
                                        }};

}  // namespace hetero::tokenizer
