// What a tokenizer is made of, whatever file it came from. The loaders fill it; make_tokenizer() makes it work.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/split.h"
#include "tokenizer/vocabulary.h"

namespace hetero::tokenizer {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, SentencePiece's sign for a space

struct Merge {
    TokenId left = -1;
    TokenId right = -1;
    TokenId result = -1;
};

struct DecodeRules {
    enum class Leading {
        keep,
        strip_spaces,    // up to `spaces` of them
        drop_first_mark  // the space marks of the first token
    };
    bool marks_to_spaces = false;           // U+2581 stands for a space in normal tokens
    bool marks_to_spaces_in_added = false;  // and in added and special ones
    Leading leading = Leading::keep;
    unsigned spaces = 0;
};

struct TokenizerParts {
    Vocabulary vocabulary;
    bool byte_level = false;     // merges start from bytes; otherwise from characters
    bool byte_fallback = false;  // characters without a token become <0xXX> tokens
    bool fuse_unknown = false;
    bool ignore_merges = false;  // a word that is a token is taken as it is
    std::optional<TokenId> unknown;

    std::vector<Merge> merges;  // best first; the first of equal pairs counts
    // [token id], instead of merges: any two neighbours whose texts together are a token may be merged, the smallest
    // rank first (SentencePiece, where it comes from the scores).
    std::vector<std::uint32_t> ranks;

    std::vector<NormalizerRule> normalizer;
    std::vector<WordRule> word_rules;
    std::vector<AddedToken> added;
    DecodeRules decode;

    std::optional<TokenId> bos;
    bool adds_bos = false;
    std::optional<TokenId> padding;  // of batches; nothing here uses it
    std::vector<TokenId> eos;  // what the files declare; make_tokenizer adds the well-known ones
    std::optional<std::string> chat_template;
};

// How a SentencePiece-style tokenizer treats spaces: each becomes U+2581, and one is put before the text or not.
struct SpaceRule {
    bool prefix = false;
    bool only_first = false;  // the prefix: before the whole input, not after each special token again
};
// Whether it is written as normalizers or as Metaspace. nullopt: spaces are treated in another way.
[[nodiscard]] std::optional<SpaceRule> space_rule(const TokenizerParts& parts);

// What the files say. Errors name the file.
Result<TokenizerParts> parts_from_folder(const std::string& folder);
Result<TokenizerParts> parts_from_gguf(const io::GgufFile& file);

Result<std::shared_ptr<const Tokenizer>> make_tokenizer(TokenizerParts parts);

// SHA-256 over what decides what the ids mean: the version of this scheme, the kind of BPE, per id its kind and text
// (U+2581 for spaces where the model writes them so), the normalizer and word rules, and for byte-level BPE the merges
// in order. Equal for a GGUF file and a tokenizer.json of the same tokenizer. Not covered: BOS and EOS choices, lstrip
// and its like, ignore_merges (they change which ids a text gets, not what an id stands for), and SentencePiece's
// scores (its vocabulary is in their order).
[[nodiscard]] Digest digest_of(const TokenizerParts& parts);

}  // namespace hetero::tokenizer
