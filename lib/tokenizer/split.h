// Pre-tokenizers: rules that cut a text into words before merging. They follow Hugging Face tokenizers
// (https://github.com/huggingface/tokenizers, tokenizers/src/pre_tokenizers), as tokenizer.json is defined by it.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "tokenizer/regex.h"

namespace hetero::tokenizer {

// What to look for: a literal text, or a regular expression where `regex` is set.
struct Pattern {
    std::string literal;
    std::shared_ptr<const Regex> regex;

    static Result<Pattern> regular(std::string_view expression, Regex::Trust trust = Regex::Trust::none);
    static Pattern exact(std::string text);
    [[nodiscard]] std::string description() const;  // canonical, for digests
};

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct SplitRule {
    Pattern pattern;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;
};

// Every word gets a space in front, unless it has one (ByteLevel with add_prefix_space).
struct PrefixSpaceRule {};

// Spaces become `replacement`, which is put in front of every word, or of the text's first one, unless it is there.
struct MetaspaceRule {
    enum class Prepend { always, first, never };
    std::string replacement;
    Prepend prepend = Prepend::always;
    bool split = true;  // a word begins at each replacement
};

using WordRule = std::variant<SplitRule, PrefixSpaceRule, MetaspaceRule>;
[[nodiscard]] std::string description(const WordRule& rule);  // canonical

struct Words {
    struct Range {
        std::size_t begin = 0;
        std::size_t end = 0;
    };
    std::string text;           // what the rules made of the input
    std::vector<Range> ranges;  // words, in order, none empty

    [[nodiscard]] std::string_view word(Range range) const {
        return std::string_view(text).substr(range.begin, range.end - range.begin);
    }
};

// The rules with working memory: one per thread.
class WordSplitter {
public:
    explicit WordSplitter(const std::vector<WordRule>& rules);
    // at_start: the text is the beginning of the whole input (for MetaspaceRule::Prepend::first).
    void split(std::string text, bool at_start, Words& out);

private:
    void apply(const SplitRule& rule, RegexMatcher* matcher, Words& words);
    const std::vector<WordRule>* rules_;
    std::vector<std::unique_ptr<RegexMatcher>> matchers_;  // one per rule; null for literals
};

// All occurrences of `pattern` in text, replaced by `with`.
[[nodiscard]] std::string replace_all(std::string_view text, const Pattern& pattern, std::string_view with);

}  // namespace hetero::tokenizer
