#include <nlohmann/json.hpp>
#include <unordered_set>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/export.h"
#include "tokenizer/named_splits.h"
#include "tokenizer/spm_merges.h"
#include "tokenizer/utf8.h"

namespace hetero::tokenizer {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Members are looked up one by one in an ordered object: entries that are known to be new are put at its end.
void append(OrderedJson& object, std::string key, OrderedJson value) {
    object.get_ref<OrderedJson::object_t&>().push_back({std::move(key), std::move(value)});
}

class Writer {
public:
    Writer(const TokenizerParts& parts, std::uint32_t context_length) : parts_(parts), context_(context_length) {}

    Result<FolderTokenizer> write() {
        OrderedJson json = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
        json["added_tokens"] = added_tokens();
        json["normalizer"] = normalizer();
        json["pre_tokenizer"] = parts_.byte_level ? pre_tokenizer() : OrderedJson();
        json["post_processor"] = post_processor();
        json["decoder"] = decoder();
        HETERO_TRY(json["model"], model());
        FolderTokenizer out;
        out.tokenizer_json = json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
        out.tokenizer_config_json = config().dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
        return out;
    }

private:
    // As it stands in tokenizer.json: in the byte alphabet, or with U+2581 for spaces.
    [[nodiscard]] std::string spelling(TokenId id) const {
        const std::string& text = parts_.vocabulary.text(id);
        const TokenKind kind = parts_.vocabulary.kind(id);
        if (parts_.byte_level) return kind == TokenKind::normal ? alphabet_of_bytes(text) : text;
        // GGUF files have the spaces of user-defined tokens as such.
        return kind == TokenKind::added ? replace_all(text, Pattern::exact(" "), kSpaceMark) : text;
    }
    [[nodiscard]] OrderedJson spelling(const std::optional<TokenId>& id) const {
        return id ? OrderedJson(spelling(*id)) : OrderedJson();
    }

    [[nodiscard]] OrderedJson added_tokens() const {
        OrderedJson list = OrderedJson::array();
        for (const AddedToken& token : parts_.added) {
            list.push_back({{"id", token.id},
                            {"content", spelling(token.id)},
                            {"single_word", token.single_word},
                            {"lstrip", token.lstrip},
                            {"rstrip", token.rstrip},
                            {"normalized", token.normalized},
                            {"special", token.special}});
        }
        return list;
    }

    [[nodiscard]] OrderedJson normalizer() const {
        OrderedJson list = OrderedJson::array();
        for (const NormalizerRule& rule : parts_.normalizer) {
            if (std::holds_alternative<UnicodeForm>(rule)) {
                list.push_back({{"type", description(rule)}});
            } else if (const auto* prepend = std::get_if<Prepend>(&rule)) {
                list.push_back({{"type", "Prepend"}, {"prepend", prepend->text}});
            } else {
                const auto& replace = std::get<Replace>(rule);
                list.push_back({{"type", "Replace"},
                                {"pattern", {{"String", replace.pattern.literal}}},
                                {"content", replace.with}});
            }
        }
        if (list.empty()) return nullptr;
        if (list.size() == 1) return list[0];
        return {{"type", "Sequence"}, {"normalizers", list}};
    }

    // All that have a name are splits by regular expressions.
    [[nodiscard]] OrderedJson pre_tokenizer() const {
        OrderedJson list = OrderedJson::array();
        for (const WordRule& rule : parts_.word_rules) {
            list.push_back({{"type", "Split"},
                            {"pattern", {{"Regex", std::get<SplitRule>(rule).pattern.regex->source()}}},
                            {"behavior", "Isolated"},
                            {"invert", false}});
        }
        // The very pattern that ByteLevel has of its own.
        const bool own = !list.empty() && list.back()["pattern"]["Regex"] == kGpt2Pattern;
        if (own) list.erase(list.size() - 1);
        list.push_back(
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", own}});
        if (list.size() == 1) return list[0];
        return {{"type", "Sequence"}, {"pretokenizers", list}};
    }

    [[nodiscard]] OrderedJson post_processor() const {
        if (!parts_.adds_bos || !parts_.bos) return nullptr;
        const std::string text = spelling(*parts_.bos);
        const OrderedJson bos = {{"SpecialToken", {{"id", text}, {"type_id", 0}}}};
        const auto sequence = [](const char* name) {
            return OrderedJson{{"Sequence", {{"id", name}, {"type_id", 0}}}};
        };
        OrderedJson tokens = OrderedJson::object();
        tokens[text] = {{"id", text}, {"ids", {*parts_.bos}}, {"tokens", {text}}};
        return {{"type", "TemplateProcessing"},
                {"single", {bos, sequence("A")}},
                {"pair", {bos, sequence("A"), bos, sequence("B")}},
                {"special_tokens", tokens}};
    }

    [[nodiscard]] OrderedJson decoder() const {
        if (parts_.byte_level) {
            return {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
        }
        OrderedJson list = OrderedJson::array();
        list.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}});
        list.push_back({{"type", "ByteFallback"}});
        list.push_back({{"type", "Fuse"}});
        if (parts_.decode.leading == DecodeRules::Leading::strip_spaces) {
            list.push_back({{"type", "Strip"}, {"content", " "}, {"start", parts_.decode.spaces}, {"stop", 0}});
        }
        return {{"type", "Sequence"}, {"decoders", list}};
    }

    Result<OrderedJson> model() const {
        OrderedJson vocab = OrderedJson::object();
        std::unordered_set<std::string> seen;
        for (TokenId id = 0; parts_.vocabulary.contains(id); ++id) {
            if (parts_.vocabulary.kind(id) == TokenKind::hole) continue;
            std::string text = spelling(id);
            if (!seen.insert(text).second) {
                return fail(Errc::bad_input,
                            "token {} ('{}') has the text of another one, which tokenizer.json cannot say", id,
                            to_valid_utf8(text));
            }
            append(vocab, std::move(text), id);
        }
        OrderedJson merges = OrderedJson::array();
        for (const Merge& merge : parts_.ranks.empty() ? parts_.merges : merges_from_scores(parts_)) {
            merges.push_back({spelling(merge.left), spelling(merge.right)});
        }
        OrderedJson json = {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", parts_.byte_level ? OrderedJson() : spelling(parts_.unknown)},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", parts_.fuse_unknown},
                            {"byte_fallback", parts_.byte_fallback},
                            {"ignore_merges", parts_.ignore_merges}};
        append(json, "vocab", std::move(vocab));
        append(json, "merges", std::move(merges));
        return json;
    }

    [[nodiscard]] OrderedJson config() const {
        OrderedJson json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                            {"model_max_length", context_},
                            {"clean_up_tokenization_spaces", false},
                            {"add_bos_token", parts_.adds_bos && parts_.bos},
                            {"add_eos_token", false}};
        const auto token = [&](const char* key, const std::optional<TokenId>& id) {
            if (id) json[key] = spelling(*id);
        };
        token("bos_token", parts_.bos);
        if (!parts_.eos.empty()) token("eos_token", parts_.eos.front());
        if (!parts_.byte_level) token("unk_token", parts_.unknown);
        token("pad_token", parts_.padding);
        if (parts_.chat_template) json["chat_template"] = *parts_.chat_template;
        return json;
    }

    const TokenizerParts& parts_;
    std::uint32_t context_;
};

}  // namespace

Result<FolderTokenizer> to_folder(const TokenizerParts& parts, std::uint32_t context_length) {
    return Writer(parts, context_length).write();
}

}  // namespace hetero::tokenizer
