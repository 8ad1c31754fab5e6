// UTF-8 decoding by the rules of The Unicode Standard, table 3-7: overlong forms, surrogates and values above U+10FFFF
// are ill-formed, and an ill-formed sequence is cut at its maximal subpart (section 3.9, "U+FFFD Substitution").
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hetero::tokenizer {

enum class Utf8Status : std::uint8_t {
    valid,
    ill_formed,  // can never become valid, whatever follows
    truncated,   // the text ends inside what may still become a valid character
};

struct Utf8Char {
    char32_t code = 0xFFFD;
    std::uint32_t bytes = 0;  // length, or length of the maximal subpart; >= 1
    Utf8Status status = Utf8Status::ill_formed;
};

// The character at text[at]; `at` must be inside the text.
[[nodiscard]] Utf8Char decode_utf8(std::string_view text, std::size_t at) noexcept;

[[nodiscard]] bool is_valid_utf8(std::string_view text) noexcept;

// The White_Space property.
[[nodiscard]] bool is_white_space(char32_t code) noexcept;

}  // namespace hetero::tokenizer
