// The byte alphabet of GPT-2: each byte is written as one printable character in vocabularies and merges.
// Bytes 33..126, 161..172 and 174..255 stand for themselves; the other 68 are U+0100 onwards, in order. Source:
// bytes_to_unicode() in https://github.com/openai/gpt-2/blob/master/src/encoder.py
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace hetero::tokenizer {

// Appends the bytes that `text` spells; false where it holds a character outside the alphabet.
[[nodiscard]] bool append_bytes_of_alphabet(std::string_view text, std::string& bytes);
// The bytes alone; none where it holds such a character.
[[nodiscard]] std::optional<std::string> bytes_of_alphabet(std::string_view text);
[[nodiscard]] std::string alphabet_of_bytes(std::string_view bytes);

}  // namespace hetero::tokenizer
