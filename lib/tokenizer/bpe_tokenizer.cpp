// The tokenizer itself: cut at added tokens, normalise, split into words, merge.
#include <algorithm>
#include <unordered_map>

#include "tokenizer/chat/chat_template.h"
#include "tokenizer/eos.h"
#include "tokenizer/merge.h"
#include "tokenizer/parts.h"
#include "tokenizer/utf8.h"

namespace hetero::tokenizer {
namespace {

constexpr std::size_t kLongestWord = std::size_t{1} << 30;  // symbols are counted in 32 bits; a longer word is cut
constexpr std::size_t kCachedWord = 64;                     // bytes; longer words rarely come twice
constexpr std::size_t kCacheFrom = 16;                      // words in a text from which the cache pays

std::uint64_t pair_key(TokenId left, TokenId right) noexcept {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

class BpeTokenizer final : public Tokenizer {
public:
    BpeTokenizer(TokenizerParts parts, AddedTokens added)
        : parts_(std::move(parts)), added_(std::move(added)), pairs_(parts_.merges.size()) {
        std::uint32_t rank = 0;
        for (const Merge& merge : parts_.merges)
            pairs_.insert(pair_key(merge.left, merge.right), MergedPair{rank++, merge.result});
        for (unsigned byte = 0; byte < 256; ++byte) {
            const char text = static_cast<char>(byte);
            byte_ids_[byte] = parts_.byte_level ? parts_.vocabulary.find_ordinary(std::string_view(&text, 1)) : -1;
        }
        digest_ = digest_of(parts_);
        parts_.merges = {};  // pairs_ has them
        if (parts_.chat_template) chat_ = find_chat_formatter(*parts_.chat_template);
    }

    std::vector<TokenId> encode(std::string_view text, SpecialText special) const override;
    std::string piece(TokenId id, bool skip_special) const override;
    std::string decode(std::span<const TokenId> ids, bool skip_special) const override;

    std::size_t vocab_size() const noexcept override { return parts_.vocabulary.size(); }
    std::optional<TokenId> bos() const noexcept override { return parts_.bos; }
    bool adds_bos() const noexcept override { return parts_.adds_bos && parts_.bos.has_value(); }
    const std::vector<TokenId>& eos() const noexcept override { return parts_.eos; }
    const Digest& digest() const noexcept override { return digest_; }
    Result<std::string> format_chat(std::span<const ChatMessage> messages, bool add_generation_prompt) const override;

private:
    friend class Encoder;

    TokenizerParts parts_;
    AddedTokens added_;
    FlatMap<MergedPair> pairs_;
    TokenId byte_ids_[256] = {};
    Digest digest_{};
    ChatFormatter chat_;
};

// One call of encode(): working memory that is used again from word to word.
class Encoder {
public:
    Encoder(const BpeTokenizer& tokenizer, SpecialText special, std::vector<TokenId>& ids)
        : t_(tokenizer), special_(special), ids_(ids), splitter_(tokenizer.parts_.word_rules) {}

    void text(std::string_view text) {
        std::vector<Segment> raw;
        t_.added_.cut(text, false, special_, raw);
        std::vector<Segment> segments;
        for (const Segment& part : raw) {
            if (part.id >= 0) {
                ids_.push_back(part.id);
                continue;
            }
            const std::string normal = normalize(t_.parts_.normalizer, std::string(part.text));
            segments.clear();
            t_.added_.cut(normal, true, special_, segments);
            const bool first = part.text.data() == text.data();
            for (const Segment& segment : segments) {
                if (segment.id >= 0)
                    ids_.push_back(segment.id);
                else
                    words(segment.text, first && segment.text.data() == normal.data());
            }
        }
    }

private:
    struct Place {  // where in ids_ a word's tokens already stand
        std::size_t begin = 0;
        std::size_t count = 0;
    };

    void words(std::string_view text, bool at_start) {
        splitter_.split(std::string(text), at_start, words_);
        const bool cached = words_.ranges.size() >= kCacheFrom;
        std::unordered_map<std::string_view, Place> places;  // keys are parts of words_.text
        for (const Words::Range range : words_.ranges) {
            const std::string_view word = words_.word(range);
            if (!cached || word.size() > kCachedWord) {
                this->word(word);
                continue;
            }
            const auto [place, fresh] = places.try_emplace(word);
            if (fresh) {
                place->second.begin = ids_.size();
                this->word(word);
                place->second.count = ids_.size() - place->second.begin;
            } else {
                const Place from = place->second;
                for (std::size_t i = 0; i < from.count; ++i) ids_.push_back(ids_[from.begin + i]);
            }
        }
    }

    void word(std::string_view word) {
        while (word.size() > kLongestWord) {
            std::size_t end = kLongestWord;
            while (!t_.parts_.byte_level && (static_cast<unsigned char>(word[end]) & 0xC0) == 0x80) --end;
            short_word(word.substr(0, end));
            word.remove_prefix(end);
        }
        short_word(word);
    }

    void short_word(std::string_view word) {
        const Vocabulary& vocabulary = t_.parts_.vocabulary;
        if (t_.parts_.ignore_merges) {
            if (const TokenId id = vocabulary.find_ordinary(word); id >= 0) {
                ids_.push_back(id);
                return;
            }
        }
        symbols_.clear();
        last_unknown_ = false;
        if (!t_.parts_.ranks.empty()) {
            ranked(word);
            return;
        }
        if (t_.parts_.byte_level)
            byte_symbols(word);
        else
            character_symbols(word);
        link();
        merger_.merge(symbols_, [&](const Symbol& left, const Symbol& right) -> std::optional<MergedPair> {
            const MergedPair* merged = t_.pairs_.find(pair_key(left.id, right.id));
            return merged != nullptr ? std::optional(*merged) : std::nullopt;
        });
        for (const Symbol& symbol : symbols_)
            if (symbol.length > 0) ids_.push_back(symbol.id);
    }

    // SentencePiece: merging goes by text, and what has no token falls back to bytes afterwards.
    void ranked(std::string_view word) {
        const Vocabulary& vocabulary = t_.parts_.vocabulary;
        for (std::size_t at = 0; at < word.size();) {
            const Utf8Char c = decode_utf8(word, at);
            add(at, c.bytes, vocabulary.find_ordinary(word.substr(at, c.bytes)));
            at += c.bytes;
        }
        link();
        merger_.merge(symbols_, [&](const Symbol& left, const Symbol& right) -> std::optional<MergedPair> {
            const std::size_t length = std::size_t{left.length} + right.length;
            if (length > vocabulary.longest()) return std::nullopt;
            const TokenId id = vocabulary.find_ordinary(word.substr(left.begin, length));
            if (id < 0) return std::nullopt;
            return MergedPair{t_.parts_.ranks[static_cast<std::size_t>(id)], id};
        });
        const std::vector<Symbol> merged = std::move(symbols_);
        symbols_.clear();
        for (const Symbol& symbol : merged) {
            if (symbol.length == 0) continue;
            if (symbol.id >= 0)
                add(symbol.begin, symbol.length, symbol.id);
            else
                fall_back(word, symbol.begin, symbol.length);
        }
        for (const Symbol& symbol : symbols_) ids_.push_back(symbol.id);
    }

    void byte_symbols(std::string_view word) {
        for (std::size_t at = 0; at < word.size(); ++at) {
            const TokenId id = t_.byte_ids_[static_cast<unsigned char>(word[at])];
            if (id >= 0)
                add(at, 1, id);
            else
                unknown(at, 1);
        }
    }

    void character_symbols(std::string_view word) {
        for (std::size_t at = 0; at < word.size();) {
            const Utf8Char c = decode_utf8(word, at);
            const TokenId id = t_.parts_.vocabulary.find_ordinary(word.substr(at, c.bytes));
            if (id >= 0)
                add(at, c.bytes, id);
            else
                fall_back(word, at, c.bytes);
            at += c.bytes;
        }
    }

    void fall_back(std::string_view word, std::size_t begin, std::size_t length) {
        if (t_.parts_.byte_fallback) {
            const auto token = [&](std::size_t i) {
                return t_.parts_.vocabulary.byte_token(static_cast<unsigned char>(word[begin + i]));
            };
            bool all = true;
            for (std::size_t i = 0; i < length; ++i) all = all && token(i) >= 0;
            if (all) {
                for (std::size_t i = 0; i < length; ++i) add(begin + i, 1, token(i));
                return;
            }
        }
        unknown(begin, length);
    }

    // Without a token for unknown text it is dropped, as the models' own tokenizers do.
    void unknown(std::size_t begin, std::size_t length) {
        if (!t_.parts_.unknown) return;
        if (t_.parts_.fuse_unknown && last_unknown_) {
            symbols_.back().length += static_cast<std::uint32_t>(length);
            return;
        }
        add(begin, length, *t_.parts_.unknown);
        last_unknown_ = true;
    }

    void add(std::size_t begin, std::size_t length, TokenId id) {
        symbols_.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(length), id, -1, -1});
        last_unknown_ = false;
    }

    void link() {
        const auto count = static_cast<std::int32_t>(symbols_.size());
        for (std::int32_t i = 0; i < count; ++i) {
            symbols_[static_cast<std::size_t>(i)].previous = i - 1;
            symbols_[static_cast<std::size_t>(i)].next = i + 1 < count ? i + 1 : -1;
        }
    }

    const BpeTokenizer& t_;
    SpecialText special_;
    std::vector<TokenId>& ids_;
    WordSplitter splitter_;
    Words words_;
    std::vector<Symbol> symbols_;
    Merger merger_;
    bool last_unknown_ = false;
};

std::vector<TokenId> BpeTokenizer::encode(std::string_view text, SpecialText special) const {
    std::vector<TokenId> ids;
    ids.reserve(text.size() / 4 + 8);
    if (is_valid_utf8(text)) {
        Encoder(*this, special, ids).text(text);
    } else {
        const std::string repaired = to_valid_utf8(text);
        Encoder(*this, special, ids).text(repaired);
    }
    return ids;
}

std::string BpeTokenizer::piece(TokenId id, bool skip_special) const {
    const Vocabulary& vocabulary = parts_.vocabulary;
    if (!vocabulary.contains(id)) return {};
    const TokenKind kind = vocabulary.kind(id);
    if (kind == TokenKind::special && skip_special) return {};
    if (kind == TokenKind::byte) return std::string(1, static_cast<char>(parse_byte_token(vocabulary.text(id))));
    const bool marks =
        kind == TokenKind::normal ? parts_.decode.marks_to_spaces : parts_.decode.marks_to_spaces_in_added;
    if (marks) return replace_all(vocabulary.text(id), Pattern::exact(std::string(kSpaceMark)), " ");
    return vocabulary.text(id);
}

std::string BpeTokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
    std::string out;
    bool first = true;
    for (const TokenId id : ids) {
        if (!parts_.vocabulary.contains(id)) continue;
        if (skip_special && parts_.vocabulary.kind(id) == TokenKind::special) continue;
        if (first && parts_.decode.leading == DecodeRules::Leading::drop_first_mark)
            out += replace_all(
                parts_.vocabulary.kind(id) == TokenKind::byte ? piece(id, false) : parts_.vocabulary.text(id),
                Pattern::exact(std::string(kSpaceMark)), "");
        else
            out += piece(id, skip_special);
        first = false;
    }
    if (parts_.decode.leading == DecodeRules::Leading::strip_spaces) {
        std::size_t spaces = 0;
        while (spaces < parts_.decode.spaces && spaces < out.size() && out[spaces] == ' ') ++spaces;
        out.erase(0, spaces);
    }
    return out;
}

Result<std::string> BpeTokenizer::format_chat(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
    if (!parts_.chat_template)
        return fail(Errc::usage, "the model has no chat template; give the prompt as plain text");
    if (!chat_)
        return fail(Errc::bad_input,
                    "the model's chat template is not one of those implemented ({}); give the prompt as plain text",
                    known_chat_templates());
    ChatContext context;
    if (parts_.bos) context.bos = parts_.vocabulary.text(*parts_.bos);
    if (!parts_.eos.empty()) context.eos = parts_.vocabulary.text(parts_.eos.front());
    return chat_(context, messages, add_generation_prompt);
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> make_tokenizer(TokenizerParts parts) {
    std::vector<std::string> normalized;
    normalized.reserve(parts.added.size());
    for (const AddedToken& token : parts.added)
        normalized.push_back(token.normalized ? normalize(parts.normalizer, token.text) : token.text);
    HETERO_TRY(AddedTokens added, AddedTokens::make(parts.added, normalized));
    add_well_known_eos(parts.vocabulary, parts.eos);
    return std::make_shared<const BpeTokenizer>(std::move(parts), std::move(added));
}

}  // namespace hetero::tokenizer
