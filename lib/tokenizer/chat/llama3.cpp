// Llama 3: <|start_header_id|>ROLE<|end_header_id|> two newlines, trimmed CONTENT, <|eot_id|>. Llama 3.2's template
// always writes a system turn with the date. Sources: tokenizer_config.json of meta-llama/Meta-Llama-3-8B-Instruct and
// Llama-3.2-1B-Instruct.
#include <ctime>

#include "tokenizer/chat/chat_template.h"
#include "tokenizer/chat/jinja.h"

namespace hetero::tokenizer {
namespace {

constexpr std::string_view kAssistant = "<|start_header_id|>assistant<|end_header_id|>\n\n";

void turn(std::string& out, std::string_view role, std::string_view content) {
    out.append("<|start_header_id|>")
        .append(role)
        .append("<|end_header_id|>\n\n")
        .append(trim(content))
        .append("<|eot_id|>");
}

ChatFormatter llama3(bool always_prompts) {
    return [always_prompts](const ChatContext& context, std::span<const ChatMessage> messages,
                            bool add_generation_prompt) -> Result<std::string> {
        std::string out;
        if (!messages.empty()) out += context.bos;
        for (const ChatMessage& message : messages) turn(out, message.role, message.content);
        if (add_generation_prompt || always_prompts) out += kAssistant;
        return out;
    };
}

ChatFormatter recognize_llama3(std::string_view canonical) {
    constexpr std::string_view kLoop =
        "{%set loop_messages=messages%}{%for message in loop_messages%}"
        "{%set "
        "content='<|start_header_id|>'+message['role']+'<|end_header_id|>\n\n'+message['content']|trim+'<|eot_id|>'%}"
        "{%if loop['index0']==0%}{%set content=bos_token+content%}{%endif%}{{content}}{%endfor%}";
    constexpr std::string_view kPrompt = "<|start_header_id|>assistant<|end_header_id|>\n\n";
    if (!canonical.starts_with(kLoop)) return {};
    const std::string_view rest = canonical.substr(kLoop.size());
    if (rest == kPrompt) return llama3(true);  // its first edition
    return rest == "{%if add_generation_prompt%}" + std::string(kPrompt) + "{%endif%}" ? llama3(false)
                                                                                       : ChatFormatter{};
}

std::string today() {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    if (localtime_r(&now, &local) == nullptr)
        return "26 Jul 2024";  // what the template says where the date is not known
    constexpr std::string_view kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    return fmt::format("{:02} {} {}", local.tm_mday, kMonths[local.tm_mon], local.tm_year + 1900);
}

Result<std::string> llama32(const ChatContext& context, std::span<const ChatMessage> messages,
                            bool add_generation_prompt) {
    if (messages.empty()) return chat_error("llama3.2", "there are no messages");
    std::string_view system;
    if (messages[0].role == "system") {
        system = trim(messages[0].content);
        messages = messages.subspan(1);
    }
    std::string out = context.bos;
    out += "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ";
    out.append(today()).append("\n\n").append(system).append("<|eot_id|>");
    for (const ChatMessage& message : messages) {
        if (message.role == "tool" || message.role == "ipython")
            return chat_error("llama3.2", "tool messages are not implemented");
        turn(out, message.role, message.content);
    }
    if (add_generation_prompt) out += kAssistant;
    return out;
}

ChatFormatter recognize_llama32(std::string_view canonical) {
    return is_canonical_digest(canonical, "0050bb73c12fc1c97d3a3ccd1ba24b01db2d511c0314462fa02ba014f6e3b1a2")
               ? ChatFormatter(llama32)
               : ChatFormatter{};
}

}  // namespace

const ChatTemplate kLlama3{"llama3", recognize_llama3, [] { return llama3(false); }};
const ChatTemplate kLlama32{"llama3.2", recognize_llama32, [] { return ChatFormatter(llama32); }};

}  // namespace hetero::tokenizer
