#include "tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace hetero::tokenizer {
namespace {

int hex_digit(char c) noexcept {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

std::uint32_t hash_of(std::string_view text) noexcept {
    const std::size_t hash = std::hash<std::string_view>{}(text);
    return static_cast<std::uint32_t>(hash ^ (hash >> 32));
}

}  // namespace

int parse_byte_token(std::string_view text) noexcept {
    if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
    const int high = hex_digit(text[3]);
    const int low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

Result<Vocabulary> Vocabulary::make(std::vector<std::string> texts, std::vector<TokenKind> kinds) {
    if (texts.empty()) return fail(Errc::bad_input, "the vocabulary is empty");
    Vocabulary out;
    out.texts_ = std::move(texts);
    out.kinds_ = std::move(kinds);
    out.slots_.resize(std::bit_ceil(out.texts_.size() * 2));
    std::fill(std::begin(out.bytes_), std::end(out.bytes_), -1);

    const auto count = static_cast<TokenId>(out.texts_.size());
    for (TokenId id = 0; id < count; ++id) {
        const std::string& text = out.text(id);
        if (text.empty() || out.kind(id) != TokenKind::normal) continue;
        if (const TokenId other = out.find(text); other >= 0)
            return fail(Errc::bad_input, "the vocabulary has tokens {} and {} of the same text", other, id);
        out.insert(id);
    }
    // Any other token whose text is also a normal token's is reached by matching, not by this index.
    for (const TokenKind kind : {TokenKind::added, TokenKind::byte, TokenKind::matched, TokenKind::special})
        for (TokenId id = 0; id < count; ++id)
            if (out.kind(id) == kind && !out.text(id).empty() && out.find(out.text(id)) < 0) out.insert(id);

    for (TokenId id = 0; id < count; ++id) {
        if (out.kind(id) != TokenKind::byte) continue;
        const int byte = parse_byte_token(out.text(id));
        if (byte < 0)
            return fail(Errc::bad_input, "token {} is of type byte, but its text is not of the form <0xXX>", id);
        out.bytes_[byte] = id;
    }
    return out;
}

void Vocabulary::insert(TokenId id) {
    const std::size_t mask = slots_.size() - 1;
    const std::uint32_t hash = hash_of(text(id));
    std::size_t at = hash & mask;
    while (slots_[at].id >= 0) at = (at + 1) & mask;
    slots_[at] = {hash, id};
    longest_ = std::max(longest_, text(id).size());
}

TokenId Vocabulary::find(std::string_view text) const noexcept {
    const std::size_t mask = slots_.size() - 1;
    const std::uint32_t hash = hash_of(text);
    for (std::size_t at = hash & mask; slots_[at].id >= 0; at = (at + 1) & mask)
        if (slots_[at].hash == hash && this->text(slots_[at].id) == text) return slots_[at].id;
    return -1;
}

TokenId Vocabulary::find_ordinary(std::string_view text) const noexcept {
    const TokenId id = find(text);
    return id >= 0 && (kind(id) == TokenKind::normal || kind(id) == TokenKind::added) ? id : -1;
}

}  // namespace hetero::tokenizer
