// A tokenizer in the words of the other container: what is read from a folder as metadata of a GGUF, and the other way.
// What the other container has no words for, and what would change ids without notice, is refused or said in
// `warnings`.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "io/gguf_writer.h"
#include "tokenizer/parts.h"

namespace hetero::tokenizer {

struct GgufTokenizer {
    std::vector<std::pair<std::string, io::GgufMetaValue>> metadata;  // tokenizer.*
    std::vector<std::string> warnings;
};
// rows: of the embedding; ids up to there that no token has are filled up, as readers want one token for each row.
// Keys and token types: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
// SentencePiece scores are made from the merges: of two tokens the one that is merged first has the higher score.
// A split of text that has no name in GGUF is refused.
Result<GgufTokenizer> to_gguf(const TokenizerParts& parts, std::uint32_t rows);

struct FolderTokenizer {
    std::string tokenizer_json;
    std::string tokenizer_config_json;
    std::vector<std::string> warnings;
};
// Format: https://huggingface.co/docs/tokenizers. Merges of a SentencePiece model are made from the scores: every pair
// of tokens whose texts together are a token, in the order of that token's score, as transformers makes them.
Result<FolderTokenizer> to_folder(const TokenizerParts& parts, std::uint32_t context_length);

}  // namespace hetero::tokenizer
