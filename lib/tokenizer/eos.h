// Which tokens end a turn or a text.
#pragma once
#include <vector>

#include "tokenizer/vocabulary.h"

namespace hetero::tokenizer {

// Adds the tokens that are known to end a turn or text by their names, where the vocabulary has them as special tokens.
void add_well_known_eos(const Vocabulary& vocabulary, std::vector<TokenId>& eos);

}  // namespace hetero::tokenizer
