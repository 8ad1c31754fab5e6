#include "tokenizer/parts.h"

namespace hetero::tokenizer {
namespace {

// Collects length-prefixed fields in a buffer, so that the hash runs over large pieces.
class Fields {
public:
    void number(std::uint64_t value) {
        for (int i = 0; i < 8; ++i) buffer_.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
        flush_if_large();
    }
    void text(std::string_view value) {
        number(value.size());
        buffer_.append(value);
        flush_if_large();
    }
    Digest finish() {
        hash_.update(std::string_view(buffer_));
        return hash_.finish();
    }

private:
    void flush_if_large() {
        if (buffer_.size() < 64 * 1024) return;
        hash_.update(std::string_view(buffer_));
        buffer_.clear();
    }
    std::string buffer_;
    Sha256 hash_;
};

}  // namespace

std::optional<SpaceRule> space_rule(const TokenizerParts& parts) {
    if (parts.byte_level) return std::nullopt;
    const auto replaces = [](const NormalizerRule& rule) {
        const auto* replace = std::get_if<Replace>(&rule);
        return replace != nullptr && replace->pattern.regex == nullptr && replace->pattern.literal == " " &&
               replace->with == kSpaceMark;
    };
    const auto prepends = [](const NormalizerRule& rule) {
        const auto* prepend = std::get_if<Prepend>(&rule);
        return prepend != nullptr && prepend->text == kSpaceMark;
    };
    const auto& rules = parts.normalizer;
    if (parts.word_rules.empty()) {
        if (rules.size() == 1 && replaces(rules[0])) return SpaceRule{};
        if (rules.size() == 2 && prepends(rules[0]) && replaces(rules[1])) return SpaceRule{.prefix = true};
        return std::nullopt;
    }
    if (!rules.empty() || parts.word_rules.size() != 1) return std::nullopt;
    const auto* meta = std::get_if<MetaspaceRule>(&parts.word_rules[0]);
    if (meta == nullptr || meta->replacement != kSpaceMark || meta->split) return std::nullopt;
    using enum MetaspaceRule::Prepend;
    return SpaceRule{.prefix = meta->prepend != never, .only_first = meta->prepend == first};
}

Digest digest_of(const TokenizerParts& parts) {
    Fields fields;
    fields.text("hetero-tokenizer-1");
    fields.text(parts.byte_level ? "byte-level" : "characters");
    const Vocabulary& vocabulary = parts.vocabulary;
    fields.number(vocabulary.size());
    const Pattern space = Pattern::exact(" ");
    for (TokenId id = 0; vocabulary.contains(id); ++id) {
        // GGUF does not tell added tokens inside the model's vocabulary from those outside.
        const TokenKind kind = vocabulary.kind(id) == TokenKind::matched ? TokenKind::added : vocabulary.kind(id);
        fields.number(static_cast<std::uint64_t>(kind));
        if (!parts.byte_level && vocabulary.text(id).find(' ') != std::string::npos)
            fields.text(replace_all(vocabulary.text(id), space, kSpaceMark));
        else
            fields.text(vocabulary.text(id));
    }
    std::vector<std::string> normalizer, words;
    for (const NormalizerRule& rule : parts.normalizer) normalizer.push_back(description(rule));
    for (const WordRule& rule : parts.word_rules) words.push_back(description(rule));
    if (const auto spaces = space_rule(parts)) {  // one spelling of what can be written in several ways
        normalizer.clear();
        words.clear();
        if (spaces->prefix) normalizer.push_back(description(Prepend{std::string(kSpaceMark)}));
        normalizer.push_back(description(Replace{space, std::string(kSpaceMark)}));
    }
    for (const auto* rules : {&normalizer, &words}) {
        fields.number(rules->size());
        for (const std::string& rule : *rules) fields.text(rule);
    }
    if (parts.byte_level) {
        fields.number(parts.merges.size());
        for (const Merge& merge : parts.merges)
            fields.number((static_cast<std::uint64_t>(static_cast<std::uint32_t>(merge.left)) << 32) |
                          static_cast<std::uint32_t>(merge.right));
    }
    return fields.finish();
}

}  // namespace hetero::tokenizer
