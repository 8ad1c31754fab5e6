// SentencePiece's BPE merges any two neighbours whose texts together are a token, the token of the highest score first
// (https://github.com/google/sentencepiece, bpe_model.cc); tokenizer.json lists the pairs that may be merged, the best
// first. This turns the one into the other.
#pragma once
#include <string>
#include <vector>

#include "tokenizer/parts.h"

namespace hetero::tokenizer {

// [token id]: falling in the order in which merges first give the tokens; what no merge gives comes last.
[[nodiscard]] std::vector<float> scores_from_merges(const TokenizerParts& parts);

// Where those scores do not stand for the merges: pairs that give a token and are not merged, and tokens whose merges
// are not next to each other in the list. Empty: the scores give the same ids.
[[nodiscard]] std::string difference_from_scores(const TokenizerParts& parts);

// All pairs of tokens whose texts together are a token, in the order of its rank (TokenizerParts::ranks). Added tokens
// come first: SentencePiece does not let anything else take part of their text.
[[nodiscard]] std::vector<Merge> merges_from_scores(const TokenizerParts& parts);

}  // namespace hetero::tokenizer
