#include "tokenizer/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "tokenizer/utf8.h"

namespace hetero::tokenizer {
namespace {

bool is_word_character(char32_t code) noexcept {
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_MC:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_NL:
        case UTF8PROC_CATEGORY_PC:
            return true;
        default:
            return false;
    }
}

// Start of the character that ends at `end` (> 0) of valid UTF-8.
std::size_t previous_character(std::string_view text, std::size_t end) noexcept {
    std::size_t at = end - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    return at;
}

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) noexcept {
    if (begin > 0 && is_word_character(decode_utf8(text, previous_character(text, begin)).code)) return false;
    return end >= text.size() || !is_word_character(decode_utf8(text, end).code);
}

}  // namespace

void TextMatcher::add(std::string_view text, std::uint32_t value) {
    std::uint32_t node = 0;
    for (const char c : text) {
        const auto key = static_cast<std::uint64_t>(node) * 256 + static_cast<unsigned char>(c);
        const auto [next, fresh] = edges_.insert(key, nodes_);
        if (fresh) {
            ++nodes_;
            values_.push_back(kNone);
        }
        node = *next;
    }
    if (node != 0 && values_[node] == kNone) values_[node] = value;
    if (!text.empty()) first_[static_cast<unsigned char>(text[0])] = true;
}

bool TextMatcher::next(std::string_view text, std::size_t from, Match& match) const noexcept {
    for (std::size_t begin = from; begin < text.size(); ++begin) {
        if (!first_[static_cast<unsigned char>(text[begin])]) continue;
        std::uint32_t node = 0;
        std::uint32_t found = kNone;
        std::size_t found_end = 0;
        for (std::size_t at = begin; at < text.size(); ++at) {
            const auto* edge =
                edges_.find(static_cast<std::uint64_t>(node) * 256 + static_cast<unsigned char>(text[at]));
            if (edge == nullptr) break;
            node = *edge;
            if (values_[node] != kNone) {
                found = values_[node];
                found_end = at + 1;
            }
        }
        if (found != kNone) {
            match = {begin, found_end, found};
            return true;
        }
    }
    return false;
}

Result<AddedTokens> AddedTokens::make(std::vector<AddedToken> tokens,
                                      const std::vector<std::string>& normalized_texts) {
    AddedTokens out;
    out.tokens_ = std::move(tokens);
    std::size_t total = 0;
    for (std::size_t i = 0; i < out.tokens_.size(); ++i) {
        const AddedToken& token = out.tokens_[i];
        const std::string& text = token.normalized ? normalized_texts[i] : token.text;
        if (text.empty()) continue;
        if (text.size() > TextMatcher::kLongest)
            return fail(Errc::bad_input, "added token {} has {} bytes; at most {} are matched", token.id, text.size(),
                        TextMatcher::kLongest);
        total += text.size();
        if (total > kMostText)
            return fail(Errc::bad_input, "the added tokens have more than {} bytes of text", kMostText);
        for (const bool parsed : {false, true})
            if (parsed || !token.special)
                out.matchers_[token.normalized][parsed].add(text, static_cast<std::uint32_t>(i));
    }
    return out;
}

void AddedTokens::cut(std::string_view text, bool normalized, SpecialText special, std::vector<Segment>& out) const {
    const TextMatcher& matcher = matchers_[normalized][special == SpecialText::parse];
    std::size_t done = 0;
    std::size_t from = 0;
    TextMatcher::Match match;
    while (!matcher.empty() && matcher.next(text, from, match)) {
        from = match.end;
        const AddedToken& token = tokens_[match.value];
        if (token.single_word && !stands_alone(text, match.begin, match.end)) continue;
        std::size_t begin = match.begin;
        std::size_t end = match.end;
        if (token.lstrip) {
            while (begin > 0) {
                const std::size_t before = previous_character(text, begin);
                if (!is_white_space(decode_utf8(text, before).code)) break;
                begin = before;
            }
            begin = std::max(begin, done);  // what the token before took stays with it
        }
        if (token.rstrip) {
            while (end < text.size()) {
                const Utf8Char c = decode_utf8(text, end);
                if (!is_white_space(c.code)) break;
                end += c.bytes;
            }
        }
        if (begin > done) out.push_back({text.substr(done, begin - done), -1});
        // A token of white space may lie in what the one before it took. It counts, unless lstrip left nothing of it.
        if (end > begin) out.push_back({text.substr(begin, end - begin), token.id});
        done = end;
    }
    if (done < text.size()) out.push_back({text.substr(done), -1});
}

}  // namespace hetero::tokenizer
