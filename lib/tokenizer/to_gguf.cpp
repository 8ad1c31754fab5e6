#include <algorithm>
#include <unordered_map>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/export.h"
#include "tokenizer/named_splits.h"
#include "tokenizer/spm_merges.h"

namespace hetero::tokenizer {
namespace {

using io::GgufMetaValue;

enum GgufTokenType : std::int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

std::string shown_rules(const TokenizerParts& parts) {
    std::string text;
    for (const NormalizerRule& rule : parts.normalizer) text += (text.empty() ? "" : "; ") + description(rule);
    for (const WordRule& rule : parts.word_rules) text += (text.empty() ? "" : "; ") + description(rule);
    return text.empty() ? "none" : text;
}

class Writer {
public:
    Writer(const TokenizerParts& parts, std::uint32_t rows) : parts_(parts), rows_(rows) {}

    Result<GgufTokenizer> write() {
        if (parts_.vocabulary.size() > rows_) {
            return fail(Errc::bad_input, "the tokenizer has {} tokens, but the embedding only {} rows",
                        parts_.vocabulary.size(), rows_);
        }
        add("model", std::string(parts_.byte_level ? "gpt2" : "llama"));
        HETERO_CHECK(parts_.byte_level ? name_split() : describe_spaces());
        add_tokens();
        if (parts_.byte_level)
            add_merges();
        else
            HETERO_CHECK(add_scores());
        add_special_ids();
        if (parts_.chat_template) out_.metadata.emplace_back("tokenizer.chat_template", *parts_.chat_template);
        warn_of_added_tokens();
        return std::move(out_);
    }

private:
    void add(std::string_view key, GgufMetaValue value) {
        out_.metadata.emplace_back(fmt::format("tokenizer.ggml.{}", key), std::move(value));
    }

    Status name_split() {
        const auto* form = parts_.normalizer.size() == 1 ? std::get_if<UnicodeForm>(&parts_.normalizer[0]) : nullptr;
        const bool nfc = form != nullptr && *form == UnicodeForm::nfc;
        const NamedSplit* split =
            parts_.normalizer.empty() || nfc ? name_of(parts_.word_rules, nfc, parts_.ignore_merges) : nullptr;
        if (split == nullptr) {
            std::string known;
            for (const NamedSplit& one : named_splits())
                known += fmt::format("{}{}", known.empty() ? "" : ", ", one.name);
            return fail(Errc::bad_input,
                        "how text is split has no name in GGUF (tokenizer.ggml.pre): {}{}; known are the splits of: {}",
                        shown_rules(parts_), parts_.ignore_merges ? "; ignore_merges" : "", known);
        }
        add("pre", std::string(split->name));
        return {};
    }

    Status describe_spaces() {
        const auto spaces = space_rule(parts_);
        if (!spaces) {
            return fail(Errc::bad_input,
                        "how text is normalised and split cannot be said in GGUF: {}; of tokenizers that are not "
                        "byte-level only those can that write spaces as U+2581 and split nowhere",
                        shown_rules(parts_));
        }
        add("pre", std::string("default"));
        add("add_space_prefix", spaces->prefix);
        if (spaces->only_first) {
            out_.warnings.emplace_back(
                "tokenizer: the folder puts a space before the first text only, readers of GGUF also after each "
                "special token");
        }
        return {};
    }

    void add_tokens() {
        std::vector<std::string> texts(rows_);
        std::vector<std::int32_t> types(rows_, kUnused);
        for (TokenId id = 0; parts_.vocabulary.contains(id); ++id) {
            const auto at = static_cast<std::size_t>(id);
            const TokenKind kind = parts_.vocabulary.kind(id);
            if (kind == TokenKind::hole) continue;
            const bool spelled = parts_.byte_level && kind == TokenKind::normal;
            texts[at] = spelled ? alphabet_of_bytes(parts_.vocabulary.text(id)) : parts_.vocabulary.text(id);
            types[at] = type_of(id, kind);
        }
        for (std::size_t i = 0; i < texts.size(); ++i) {
            if (types[i] == kUnused) texts[i] = fmt::format("[PAD{}]", i);
        }
        add("tokens", std::move(texts));
        add("token_type", std::move(types));
    }

    [[nodiscard]] std::int32_t type_of(TokenId id, TokenKind kind) const {
        switch (kind) {
            case TokenKind::normal:
                return kNormal;
            case TokenKind::added:
            case TokenKind::matched:
                return kUserDefined;
            case TokenKind::special:
                return !parts_.byte_level && parts_.unknown == id ? kUnknown : kControl;
            case TokenKind::byte:
                return kByte;
            case TokenKind::hole:
                break;
        }
        return kUnused;
    }

    void add_merges() {
        std::vector<std::string> merges;
        merges.reserve(parts_.merges.size());
        for (const Merge& merge : parts_.merges) {
            merges.push_back(alphabet_of_bytes(parts_.vocabulary.text(merge.left)) + " " +
                             alphabet_of_bytes(parts_.vocabulary.text(merge.right)));
        }
        add("merges", std::move(merges));
    }

    Status add_scores() {
        if (!parts_.byte_fallback) {
            return fail(Errc::bad_input,
                        "a tokenizer that is neither byte-level nor falls back to bytes cannot be said in GGUF");
        }
        std::vector<float> scores = scores_from_merges(parts_);
        scores.resize(rows_, scores.empty() ? 0 : *std::min_element(scores.begin(), scores.end()));
        add("scores", std::move(scores));
        if (const std::string difference = difference_from_scores(parts_); !difference.empty()) {
            out_.warnings.push_back(
                "tokenizer: readers of GGUF merge whatever gives a token, by its score, and may give "
                "some texts other ids than the folder's merges: " +
                difference);
        }
        return {};
    }

    void add_special_ids() {
        const auto id = [this](std::string_view key, std::optional<TokenId> token) {
            if (token) add(key, static_cast<std::uint32_t>(*token));
        };
        const auto eos = [this](std::size_t i) {
            return i < parts_.eos.size() ? std::optional(parts_.eos[i]) : std::nullopt;
        };
        id("bos_token_id", parts_.bos);
        id("eos_token_id", eos(0));
        id("eot_token_id", eos(1));
        id("eom_token_id", eos(2));
        if (!parts_.byte_level) id("unknown_token_id", parts_.unknown);
        id("padding_token_id", parts_.padding);
        add("add_bos_token", parts_.adds_bos);
        add("add_eos_token", false);
        if (parts_.eos.size() > 3) {
            out_.warnings.push_back(fmt::format(
                "tokenizer: {} tokens end a text; a GGUF names three, and others only where readers know them",
                parts_.eos.size()));
        }
    }

    void warn_of_added_tokens() {
        std::size_t count = 0;
        std::string first;
        for (const AddedToken& token : parts_.added) {
            const bool normalized = token.normalized && normalize(parts_.normalizer, token.text) != token.text;
            if (!token.lstrip && !token.rstrip && !token.single_word && !normalized) continue;
            if (count++ == 0) first = token.text;
        }
        if (count == 0) return;
        out_.warnings.push_back(fmt::format(
            "tokenizer: a GGUF does not say that '{}'{} takes the white space beside it, is matched as a whole word "
            "only, or is normalised",
            first, count == 1 ? "" : fmt::format(" and {} more added tokens", count - 1)));
    }

    const TokenizerParts& parts_;
    std::uint32_t rows_;
    GgufTokenizer out_;
};

}  // namespace

Result<GgufTokenizer> to_gguf(const TokenizerParts& parts, std::uint32_t rows) { return Writer(parts, rows).write(); }

}  // namespace hetero::tokenizer
