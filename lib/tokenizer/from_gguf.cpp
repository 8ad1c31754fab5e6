// Tokenizers from GGUF metadata (keys tokenizer.ggml.*).
// Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; defaults as in llama.cpp's src/llama-vocab.cpp.
#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>

#include "io/gguf.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/named_splits.h"
#include "tokenizer/parts.h"
#include "tokenizer/utf8.h"

namespace hetero {
namespace tokenizer {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::size_t kLargestVocabulary = std::size_t{1} << 24;

enum GgufTokenType : std::int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

class Loader {
public:
    explicit Loader(const io::GgufFile& file) : file_(file) {}

    Result<TokenizerParts> load() {
        HETERO_TRY(const auto model, file_.string("tokenizer.ggml.model"));
        if (!model) return fail(Errc::bad_input, "tokenizer.ggml.model is missing: the file has no tokenizer");
        if (*model != "gpt2" && *model != "llama")
            return fail(
                Errc::bad_input,
                "tokenizer.ggml.model is '{}', which is not implemented; known are: gpt2 (byte-level BPE), llama "
                "(SentencePiece BPE)",
                *model);
        parts_.byte_level = *model == "gpt2";
        HETERO_CHECK(read_tokens());
        HETERO_CHECK(parts_.byte_level ? read_byte_level() : read_sentencepiece());
        HETERO_CHECK(read_special_ids());
        HETERO_TRY(const auto chat, file_.string("tokenizer.chat_template"));
        if (chat) parts_.chat_template = std::string(*chat);
        return std::move(parts_);
    }

private:
    Status read_tokens() {
        HETERO_TRY(const auto tokens, file_.strings(kTokens));
        if (!tokens || tokens->empty()) return fail(Errc::bad_input, "{} is missing or empty", kTokens);
        if (tokens->size() > kLargestVocabulary)
            return fail(Errc::bad_input, "{} has {} entries; at most {} are read", kTokens, tokens->size(),
                        kLargestVocabulary);
        HETERO_TRY(const auto types, file_.integers("tokenizer.ggml.token_type"));
        if (types && types->size() != tokens->size())
            return fail(Errc::bad_input, "tokenizer.ggml.token_type has {} entries, {} has {}: they must be equal",
                        types->size(), kTokens, tokens->size());
        if (!types && !parts_.byte_level)
            return fail(Errc::bad_input,
                        "tokenizer.ggml.token_type is missing; without it byte and control tokens are not known");
        HETERO_TRY(const auto name, file_.string("general.name"));
        const bool phi3 = name && is_phi3(*name);

        std::vector<std::string> texts(tokens->size());
        std::vector<TokenKind> kinds(tokens->size(), TokenKind::normal);
        for (std::size_t i = 0; i < tokens->size(); ++i) {
            const std::string_view token = (*tokens)[i];
            const std::int64_t type = types ? (*types)[i] : std::int64_t{kNormal};
            if (!is_valid_utf8(token)) return fail(Errc::bad_input, "{}: token {} is not valid UTF-8", kTokens, i);
            const auto id = static_cast<TokenId>(i);
            switch (type) {
                case kControl:
                case kUnknown:
                    kinds[i] = TokenKind::special;
                    break;
                case kUserDefined:
                    kinds[i] = TokenKind::added;
                    break;
                case kByte:
                    kinds[i] = parts_.byte_level ? TokenKind::normal : TokenKind::byte;
                    break;
                case kNormal:
                    break;
                case kUnused:  // converters fill up with these to the rows of the embedding
                    if (token == fmt::format("[PAD{}]", i)) kinds[i] = TokenKind::hole;
                    break;
                default:
                    return fail(Errc::bad_input, "tokenizer.ggml.token_type: token {} has type {}; known are 1 to 6", i,
                                type);
            }
            if (kinds[i] == TokenKind::hole) continue;
            texts[i] = token;
            if (kinds[i] == TokenKind::special || kinds[i] == TokenKind::added) {
                AddedToken added;
                added.id = id;
                added.text = std::string(token);
                added.special = kinds[i] == TokenKind::special;
                // The files do not say which tokens take the white space after them; llama.cpp knows these by name.
                added.rstrip = phi3 && added.special && token != "<unk>" && token != "<s>" && token != "<|endoftext|>";
                parts_.added.push_back(std::move(added));
            } else if (parts_.byte_level) {
                if (auto bytes = bytes_of_alphabet(token)) texts[i] = std::move(*bytes);
            }
            if (type == kUnknown && !parts_.byte_level && !parts_.unknown) parts_.unknown = id;
        }
        while (!kinds.empty() && kinds.back() == TokenKind::hole) {
            kinds.pop_back();
            texts.pop_back();
        }
        HETERO_TRY(parts_.vocabulary, Vocabulary::make(std::move(texts), std::move(kinds)));
        tokens_ = tokens->size();
        return {};
    }

    static bool is_phi3(std::string_view name) {
        std::string lower(name);
        for (char& c : lower)
            if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
        return lower.find("phi-3") != std::string::npos || lower.find("phi3") != std::string::npos;
    }

    Status read_byte_level() {
        HETERO_TRY(const auto pre, file_.string("tokenizer.ggml.pre"));
        if (!pre)
            return fail(Errc::bad_input,
                        "tokenizer.ggml.pre is missing: how text is split is not known; convert the model again with a "
                        "newer converter");
        HETERO_TRY(const NamedSplit* split, find_named_split(*pre));
        HETERO_TRY(parts_.word_rules, rules_of(*split));
        if (split->nfc) parts_.normalizer.emplace_back(UnicodeForm::nfc);
        parts_.ignore_merges = split->ignore_merges;
        parts_.adds_bos = split->adds_bos;

        HETERO_TRY(const auto merges, file_.strings("tokenizer.ggml.merges"));
        if (!merges) return fail(Errc::bad_input, "tokenizer.ggml.merges is missing");
        parts_.merges.reserve(merges->size());
        std::string bytes;  // of both parts, one after the other
        for (std::size_t i = 0; i < merges->size(); ++i) {
            const std::string_view merge = (*merges)[i];
            const std::size_t space = merge.find(' ', 1);
            if (space == std::string::npos || space + 1 >= merge.size())
                return fail(Errc::bad_input,
                            "tokenizer.ggml.merges: entry {} ('{}') is not two tokens with a space between them", i,
                            to_valid_utf8(merge));
            bytes.clear();
            Merge ids;
            if (append_bytes_of_alphabet(merge.substr(0, space), bytes)) {
                const std::size_t cut = bytes.size();
                if (append_bytes_of_alphabet(merge.substr(space + 1), bytes)) {
                    const std::string_view whole = bytes;
                    ids.left = parts_.vocabulary.find(whole.substr(0, cut));
                    ids.right = parts_.vocabulary.find(whole.substr(cut));
                    ids.result = parts_.vocabulary.find(whole);
                }
            }
            if (ids.left < 0 || ids.right < 0 || ids.result < 0)
                return fail(Errc::bad_input,
                            "tokenizer.ggml.merges: entry {} ('{}') names a token that {} does not have", i,
                            to_valid_utf8(merge), kTokens);
            parts_.merges.push_back(ids);
        }
        return {};
    }

    Status read_sentencepiece() {
        HETERO_TRY(const auto prefix, file_.boolean("tokenizer.ggml.add_space_prefix"));
        HETERO_TRY(const auto squeeze, file_.boolean("tokenizer.ggml.remove_extra_whitespaces"));
        if (squeeze.value_or(false))
            return fail(Errc::bad_input, "tokenizer.ggml.remove_extra_whitespaces is true, which is not implemented");
        if (prefix.value_or(true)) {
            parts_.normalizer.emplace_back(Prepend{std::string(kSpaceMark)});
            parts_.decode.leading = DecodeRules::Leading::strip_spaces;
            parts_.decode.spaces = 1;
        }
        parts_.normalizer.emplace_back(Replace{Pattern::exact(" "), std::string(kSpaceMark)});
        parts_.decode.marks_to_spaces = true;
        parts_.byte_fallback = true;
        parts_.fuse_unknown = true;
        parts_.adds_bos = true;

        HETERO_TRY(const auto scores, file_.numbers("tokenizer.ggml.scores"));
        if (!scores) return fail(Errc::bad_input, "tokenizer.ggml.scores is missing");
        if (scores->size() != tokens_)
            return fail(Errc::bad_input, "tokenizer.ggml.scores has {} entries, {} has {}: they must be equal",
                        scores->size(), kTokens, tokens_);
        for (std::size_t i = 0; i < scores->size(); ++i)
            if (std::isnan((*scores)[i]))
                return fail(Errc::bad_input, "tokenizer.ggml.scores: token {} has the score NaN", i);

        // The highest score is merged first: rank 0. Equal scores share a rank, so that position decides.
        std::vector<std::uint32_t> order(scores->size());
        std::iota(order.begin(), order.end(), 0U);
        std::sort(order.begin(), order.end(),
                  [&](std::uint32_t a, std::uint32_t b) { return (*scores)[a] > (*scores)[b]; });
        parts_.ranks.resize(order.size());
        std::uint32_t rank = 0;
        for (std::size_t i = 0; i < order.size(); ++i) {
            if (i > 0 && (*scores)[order[i]] < (*scores)[order[i - 1]]) ++rank;
            parts_.ranks[order[i]] = rank;
        }
        return {};
    }

    Result<std::optional<TokenId>> special_id(std::string_view key) {
        HETERO_TRY(const auto id, file_.integer(key));
        if (!id) return std::optional<TokenId>();
        if (*id < 0 || static_cast<std::uint64_t>(*id) >= parts_.vocabulary.size())
            return fail(Errc::bad_input, "{} is {}, but the vocabulary has {} tokens", key, *id,
                        parts_.vocabulary.size());
        return std::optional<TokenId>(static_cast<TokenId>(*id));
    }

    // SentencePiece models keep BOS and EOS at fixed ids where the file does not say.
    std::optional<TokenId> usual_id(TokenId id) const {
        const bool there =
            !parts_.byte_level && parts_.vocabulary.contains(id) && parts_.vocabulary.kind(id) == TokenKind::special;
        return there ? std::optional(id) : std::nullopt;
    }

    Status read_special_ids() {
        HETERO_TRY(const auto bos, special_id("tokenizer.ggml.bos_token_id"));
        parts_.bos = bos ? bos : usual_id(1);
        HETERO_TRY(const auto eos, special_id("tokenizer.ggml.eos_token_id"));
        HETERO_TRY(const auto eot, special_id("tokenizer.ggml.eot_token_id"));
        HETERO_TRY(const auto eom, special_id("tokenizer.ggml.eom_token_id"));
        HETERO_TRY(const auto unknown, special_id("tokenizer.ggml.unknown_token_id"));
        for (const auto& id : {eos ? eos : usual_id(2), eot, eom})
            if (id && std::find(parts_.eos.begin(), parts_.eos.end(), *id) == parts_.eos.end())
                parts_.eos.push_back(*id);
        if (unknown && !parts_.byte_level) parts_.unknown = unknown;
        HETERO_TRY(parts_.padding, special_id("tokenizer.ggml.padding_token_id"));

        HETERO_TRY(const auto add_bos, file_.boolean("tokenizer.ggml.add_bos_token"));
        if (add_bos) parts_.adds_bos = *add_bos;
        HETERO_TRY(const auto add_eos, file_.boolean("tokenizer.ggml.add_eos_token"));
        if (add_eos.value_or(false))
            return fail(Errc::bad_input,
                        "tokenizer.ggml.add_eos_token is true: a prompt that ends the text cannot be continued");
        return {};
    }

    const io::GgufFile& file_;
    TokenizerParts parts_;
    std::size_t tokens_ = 0;  // in the file, those that only fill up included
};

}  // namespace

Result<TokenizerParts> parts_from_gguf(const io::GgufFile& file) {
    try {
        auto parts = Loader(file).load();
        if (!parts) return fail_with(parts.error(), file.path());
        return parts;
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: out of memory for the tokenizer", file.path());
    }
}

}  // namespace tokenizer

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_gguf(const io::GgufFile& file) {
    try {
        HETERO_TRY(tokenizer::TokenizerParts parts, tokenizer::parts_from_gguf(file));
        auto tokenizer = tokenizer::make_tokenizer(std::move(parts));
        if (!tokenizer) return fail_with(tokenizer.error(), file.path());
        return tokenizer;
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: out of memory for the tokenizer", file.path());
    }
}

}  // namespace hetero
