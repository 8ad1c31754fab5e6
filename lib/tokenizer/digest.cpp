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

std::string description(const WordRule& rule) {
    if (std::holds_alternative<PrefixSpaceRule>(rule)) return "prefix-space";
    if (const auto* meta = std::get_if<MetaspaceRule>(&rule))
        return fmt::format("metaspace:{}:{}:{}", meta->replacement, static_cast<int>(meta->prepend), meta->split);
    const auto& split = std::get<SplitRule>(rule);
    return fmt::format("split:{}:{}:{}", static_cast<int>(split.behavior), split.invert, split.pattern.description());
}

}  // namespace

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
    fields.number(parts.normalizer.size());
    for (const NormalizerRule& rule : parts.normalizer) fields.text(tokenizer::description(rule));
    fields.number(parts.word_rules.size());
    for (const WordRule& rule : parts.word_rules) fields.text(description(rule));
    if (parts.byte_level) {
        fields.number(parts.merges.size());
        for (const Merge& merge : parts.merges)
            fields.number((static_cast<std::uint64_t>(static_cast<std::uint32_t>(merge.left)) << 32) |
                          static_cast<std::uint32_t>(merge.right));
    }
    return fields.finish();
}

}  // namespace hetero::tokenizer
