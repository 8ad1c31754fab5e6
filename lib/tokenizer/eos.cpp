#include "tokenizer/eos.h"

#include <algorithm>

namespace hetero::tokenizer {
namespace {

// llama.cpp ends a generation at these (special_eog_ids in src/llama-vocab.cpp), because files often declare only one
// of the tokens that a model really ends with.
constexpr std::string_view kNames[] = {
    "<|im_end|>",    "<|eot_id|>",      "<|eom_id|>", "<|end|>",  "<end_of_turn>",
    "<|endoftext|>", "<|end_of_text|>", "<|return|>", "<|call|>", "</s>",
    "<eos>",         "<EOT>",           "[EOS]",      "[EOT]",    "<｜end▁of▁sentence｜>",
};

TokenId find_special(const Vocabulary& vocabulary, std::string_view name) {
    const TokenId id = vocabulary.find(name);
    return id >= 0 && vocabulary.kind(id) == TokenKind::special ? id : -1;
}

}  // namespace

void add_well_known_eos(const Vocabulary& vocabulary, std::vector<TokenId>& eos) {
    // With channels (<|return|>, <|call|>), <|end|> only ends one message of a turn.
    const bool channels = find_special(vocabulary, "<|return|>") >= 0 && find_special(vocabulary, "<|call|>") >= 0;
    for (const std::string_view name : kNames) {
        if (channels && name == "<|end|>") continue;
        const TokenId id = find_special(vocabulary, name);
        if (id >= 0 && std::find(eos.begin(), eos.end(), id) == eos.end()) eos.push_back(id);
    }
}

}  // namespace hetero::tokenizer
