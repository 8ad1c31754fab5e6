// Prompts and what is generated from them, as text or as token ids, stay out of messages and reports while this is on.
// It holds for the whole process and is off at first.
#pragma once
#include <fmt/format.h>

#include <string>
#include <string_view>

namespace hetero {

void set_redaction(bool on) noexcept;
[[nodiscard]] bool redacts() noexcept;

// `text`, or how long it is: "(12 bytes)".
[[nodiscard]] std::string private_text(std::string_view text);
// A token id, or "(redacted)".
[[nodiscard]] inline std::string private_token(long long id) {
    return redacts() ? std::string("(redacted)") : fmt::format("{}", id);
}

}  // namespace hetero
