// The regular expressions of pre-tokenizers and normalizers, run by PCRE2 (UTF, UCP, JIT where the machine allows it).
//
// tokenizer.json writes them for Oniguruma in Ruby syntax. They are translated where the two differ: \s is the
// White_Space property (PCRE2's \s also takes U+180E), \d is Nd, ^ and $ work at line ends, \v is U+000B. What would
// mean something else in PCRE2, or can run away (a pattern that backtracks exponentially), is refused at load time.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace hetero::tokenizer {

class Regex {
public:
    // Patterns of the source itself may be trusted: they are not tried for runaway backtracking, which takes
    // milliseconds.
    enum class Trust { none, full };
    static Result<std::shared_ptr<const Regex>> compile(std::string_view pattern, Trust trust = Trust::none);
    ~Regex();
    Regex(const Regex&) = delete;
    Regex& operator=(const Regex&) = delete;

    [[nodiscard]] const std::string& source() const noexcept { return source_; }

private:
    friend class RegexMatcher;
    Regex() = default;

    std::string source_;
    void* code_ = nullptr;  // pcre2_code
};

// Working memory for matching; one per thread. The Regex must outlive it.
class RegexMatcher {
public:
    explicit RegexMatcher(const Regex& regex);
    ~RegexMatcher();
    RegexMatcher(RegexMatcher&& other) noexcept;
    RegexMatcher(const RegexMatcher&) = delete;
    RegexMatcher& operator=(const RegexMatcher&) = delete;

    // The first match at or after `from`, as [begin, end) in bytes. `text` must be valid UTF-8.
    // none: there is no further match, or the engine gave up (its limits, memory): then failed() is true.
    [[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> next(std::string_view text, std::size_t from);
    [[nodiscard]] bool failed() const noexcept { return failed_; }

private:
    const Regex* regex_;
    void* data_ = nullptr;     // pcre2_match_data
    void* context_ = nullptr;  // pcre2_match_context
    void* stack_ = nullptr;    // pcre2_jit_stack, made when the default of 32 KiB was too small
    bool failed_ = false;
};

// `pattern` in PCRE2's spelling. Errors: bad_input, naming the construct.
[[nodiscard]] Result<std::string> translate_oniguruma(std::string_view pattern);

}  // namespace hetero::tokenizer
