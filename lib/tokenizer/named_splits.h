// The pre-tokenizers that GGUF files name in tokenizer.ggml.pre.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/split.h"

namespace hetero::tokenizer {

struct NamedSplit {
    std::string_view name;
    std::span<const std::string_view> patterns;  // applied one after the other, each isolating its matches
    bool nfc = false;                            // the model's own tokenizer normalises to NFC first
    bool ignore_merges = false;                  // a word that is a token is taken as it is
    bool adds_bos = false;                       // where tokenizer.ggml.add_bos_token is missing
};

// Refuses an unknown name, listing the known ones.
Result<const NamedSplit*> find_named_split(std::string_view name);
[[nodiscard]] std::span<const NamedSplit> named_splits() noexcept;

Result<std::vector<WordRule>> rules_of(const NamedSplit& split);

// The first name in the table that means just this; nullptr: none does.
[[nodiscard]] const NamedSplit* name_of(const std::vector<WordRule>& rules, bool nfc, bool ignore_merges);

// The pattern of GPT-2, which tokenizer.json calls ByteLevel with use_regex.
inline constexpr std::string_view kGpt2Pattern =
    R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re";

}  // namespace hetero::tokenizer
