// Chat templates are Jinja programs. They are not run: a template is brought into a canonical spelling and compared
// with those whose output is implemented in C++.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace hetero::tokenizer {

// The canonical spelling: two templates with the same one give the same output.
//  - white space control is carried out (-%} and its like; trim_blocks and lstrip_blocks are on, as in transformers),
//  comments
//    and a newline at the end of the template are gone;
//  - inside tags there is no white space but one space between words; strings stand in single quotes with escapes
//  resolved;
//    a.b is a['b'];
//  - {{ 'x' + y + 'z' }} is written as x{{y}}z.
// In literal text, { and \ are escaped by a backslash. none: the text is not a well-formed template.
[[nodiscard]] std::optional<std::string> canonical_jinja(std::string_view source);

// Jinja's trim filter and Python's str.strip(): without white space at both ends.
[[nodiscard]] std::string_view trim(std::string_view text);

}  // namespace hetero::tokenizer
