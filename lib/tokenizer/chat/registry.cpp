#include "base/hash.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/chat/jinja.h"

namespace hetero::tokenizer {
namespace {

const ChatTemplate* const kTemplates[] = {
    &kChatMl, &kChatMlDefaultSystem, &kQwen25, &kLlama3, &kLlama32, &kGemma2, &kGemma3, &kMistral, &kPhi3,
};

constexpr std::size_t kLargest = 1024 * 1024;  // bytes; published templates have up to some 20,000

}  // namespace

ChatFormatter find_chat_formatter(std::string_view source) {
    if (source.size() > kLargest) return {};
    const auto canonical = canonical_jinja(source);
    if (!canonical) return {};
    for (const ChatTemplate* known : kTemplates)
        if (ChatFormatter formatter = known->recognize(*canonical)) return formatter;
    return {};
}

const ChatTemplate* chat_template_named(std::string_view name) {
    for (const ChatTemplate* known : kTemplates)
        if (known->name == name) return known;
    return nullptr;
}

std::string known_chat_templates() {
    std::string out;
    for (const ChatTemplate* known : kTemplates) {
        if (!out.empty()) out += ", ";
        out += known->name;
    }
    return out;
}

tl::unexpected<Error> chat_error(std::string_view template_name, std::string_view what) {
    return fail(Errc::usage, "chat template {}: {}", template_name, what);
}

Status check_alternating(std::string_view template_name, std::span<const ChatMessage> messages) {
    for (std::size_t i = 0; i < messages.size(); ++i)
        if ((messages[i].role == "user") != (i % 2 == 0))
            return fail(Errc::usage,
                        "chat template {}: roles must alternate user, assistant, user, ...; message {} is of '{}'",
                        template_name, i + 1, messages[i].role);
    return {};
}

bool is_canonical_digest(std::string_view canonical, std::string_view sha256_hex) {
    return to_hex(sha256(canonical)) == sha256_hex;
}

}  // namespace hetero::tokenizer
