// Token ids, the bytes they stand for, and what kind of token each is.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace hetero::tokenizer {

enum class TokenKind : std::uint8_t {
    normal,   // made by merges
    added,    // matched as a whole in any text, and merges may make it too (GGUF: user defined)
    matched,  // matched as a whole in any text, and made in no other way
    special,  // matched only where special text is parsed (GGUF: control, unknown)
    byte,     // <0xXX>: stands for one byte
    hole,     // an id that no token has
};

class Vocabulary {
public:
    // texts: byte-level BPE: the bytes themselves for normal tokens, the literal text for the others;
    //        otherwise the literal text (with U+2581 for spaces).
    // Refuses a text that two normal tokens share (both ids are named) and <0xXX> tokens that are not of that form.
    static Result<Vocabulary> make(std::vector<std::string> texts, std::vector<TokenKind> kinds);

    [[nodiscard]] std::size_t size() const noexcept { return texts_.size(); }
    [[nodiscard]] bool contains(TokenId id) const noexcept {
        return id >= 0 && static_cast<std::size_t>(id) < texts_.size();
    }
    [[nodiscard]] const std::string& text(TokenId id) const noexcept { return texts_[static_cast<std::size_t>(id)]; }
    [[nodiscard]] TokenKind kind(TokenId id) const noexcept { return kinds_[static_cast<std::size_t>(id)]; }

    // Any token of this text; normal ones come first where kinds share it. -1: none.
    [[nodiscard]] TokenId find(std::string_view text) const noexcept;
    // Only tokens that plain text may turn into: normal and added ones. -1: none.
    [[nodiscard]] TokenId find_ordinary(std::string_view text) const noexcept;
    [[nodiscard]] TokenId byte_token(unsigned char byte) const noexcept { return bytes_[byte]; }  // <0xXX>, or -1
    [[nodiscard]] std::size_t longest() const noexcept { return longest_; }                       // bytes

private:
    struct Slot {
        std::uint32_t hash = 0;
        TokenId id = -1;
    };

    void insert(TokenId id);

    std::vector<std::string> texts_;
    std::vector<TokenKind> kinds_;
    std::vector<Slot> slots_;  // open addressing, a power of two
    TokenId bytes_[256] = {};
    std::size_t longest_ = 0;
};

// The byte that <0xXX> names, or -1 where the text is not of that form.
[[nodiscard]] int parse_byte_token(std::string_view text) noexcept;

}  // namespace hetero::tokenizer
