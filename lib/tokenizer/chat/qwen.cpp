// Qwen2.5: ChatML with a system message of its own; tools are not offered to the model.
// Source: tokenizer_config.json of Qwen/Qwen2.5-0.5B-Instruct (all sizes share it).
#include "tokenizer/chat/chat_template.h"

namespace hetero::tokenizer {
namespace {

constexpr std::string_view kName = "qwen2.5";
constexpr std::string_view kSystem = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

Result<std::string> format(const ChatContext&, std::span<const ChatMessage> messages, bool add_generation_prompt) {
    if (messages.empty()) return chat_error(kName, "there are no messages");
    std::string out = "<|im_start|>system\n";
    out.append(messages[0].role == "system" ? std::string_view(messages[0].content) : kSystem).append("<|im_end|>\n");
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const ChatMessage& message = messages[i];
        if (message.role == "system" && i == 0) continue;
        if (message.role == "user" || message.role == "assistant" || message.role == "system") {
            out.append("<|im_start|>").append(message.role).append("\n").append(message.content).append("<|im_end|>\n");
        } else if (message.role == "tool") {  // neighbours share one user turn
            if (i == 0 || messages[i - 1].role != "tool") out += "<|im_start|>user";
            out.append("\n<tool_response>\n").append(message.content).append("\n</tool_response>");
            if (i + 1 == messages.size() || messages[i + 1].role != "tool") out += "<|im_end|>\n";
        }
    }
    if (add_generation_prompt) out += "<|im_start|>assistant\n";
    return out;
}

ChatFormatter recognize(std::string_view canonical) {
    return is_canonical_digest(canonical, "1cf337e0e34997f22addea38563b0101546356118e2b6706d216545b312370db")
               ? ChatFormatter(format)
               : ChatFormatter{};
}

}  // namespace

const ChatTemplate kQwen25{kName, recognize, [] { return ChatFormatter(format); }};

}  // namespace hetero::tokenizer
