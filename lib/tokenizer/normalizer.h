// Text normalisation before splitting, as tokenizer.json's "normalizer" asks for it.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "tokenizer/split.h"

namespace hetero::tokenizer {

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };  // Unicode Standard Annex #15

struct Prepend {
    std::string text;  // put before every text that is not empty
};

struct Replace {
    Pattern pattern;
    std::string with;
};

using NormalizerRule = std::variant<UnicodeForm, Prepend, Replace>;

// `text` must be valid UTF-8; so is the result.
[[nodiscard]] std::string normalize(const std::vector<NormalizerRule>& rules, std::string text);
[[nodiscard]] std::string description(const NormalizerRule& rule);  // canonical, for digests

}  // namespace hetero::tokenizer
