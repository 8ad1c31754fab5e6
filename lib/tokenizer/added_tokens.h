// Tokens that are matched as a whole before the text is split: special ones such as <|im_end|>, and added ones.
// Rules of Hugging Face tokenizers' AddedVocabulary: leftmost-longest matches; tokens with `normalized` unset are
// looked for in the text as it came, the others in the normalised text.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/flat_map.h"
#include "tokenizer/tokenizer.h"

namespace hetero::tokenizer {

struct AddedToken {
    TokenId id = -1;
    std::string text;
    bool special = false;
    bool normalized = false;
    bool lstrip = false;       // takes the white space before it
    bool rstrip = false;       // takes the white space after it
    bool single_word = false;  // only where no letter, mark, digit or underscore touches it
};

// A set of texts; finds the leftmost-longest occurrences.
class TextMatcher {
public:
    static constexpr std::size_t kLongest = 4096;  // bytes; bounds the work per position

    void add(std::string_view text, std::uint32_t value);  // the first value of a text counts
    [[nodiscard]] bool empty() const noexcept { return nodes_ == 1; }

    struct Match {
        std::size_t begin = 0;
        std::size_t end = 0;
        std::uint32_t value = 0;
    };
    [[nodiscard]] bool next(std::string_view text, std::size_t from, Match& match) const noexcept;

private:
    static constexpr std::uint32_t kNone = 0xFFFFFFFF;
    FlatMap<std::uint32_t> edges_;  // node * 256 + byte -> node
    std::vector<std::uint32_t> values_ = {kNone};
    std::array<bool, 256> first_ = {};
    std::uint32_t nodes_ = 1;
};

struct Segment {
    std::string_view text;
    TokenId id = -1;  // >= 0: the text is this token
};

class AddedTokens {
public:
    static constexpr std::size_t kMostText = 8 * 1024 * 1024;  // bytes of all added tokens

    // normalized_texts: what the normalizer makes of each token's text.
    // Errors: bad_input (a text longer than TextMatcher::kLongest, or too much text in all).
    static Result<AddedTokens> make(std::vector<AddedToken> tokens, const std::vector<std::string>& normalized_texts);

    // Cuts `text` at the tokens of the given kind.
    void cut(std::string_view text, bool normalized, SpecialText special, std::vector<Segment>& out) const;
    [[nodiscard]] const std::vector<AddedToken>& tokens() const noexcept { return tokens_; }

private:
    std::vector<AddedToken> tokens_;
    TextMatcher matchers_[2][2];  // [normalized][special parsed]
};

}  // namespace hetero::tokenizer
