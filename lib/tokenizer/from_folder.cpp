// Tokenizers from a Hugging Face folder: tokenizer.json, and from tokenizer_config.json, generation_config.json,
// config.json and chat_template.jinja what they add (BOS, EOS, chat template). "truncation" and "padding" of
// tokenizer.json are for batches and unused.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <new>

#include "io/mapped_file.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_pipeline.h"

namespace hetero {
namespace tokenizer {
namespace {

class Loader {
public:
    explicit Loader(std::string folder) : folder_(std::move(folder)) {}

    Result<TokenizerParts> load() {
        std::error_code ignored;
        if (!std::filesystem::exists(path("tokenizer.json"), ignored)) {
            const bool protobuf = std::filesystem::exists(path("tokenizer.model"), ignored);
            return fail(
                Errc::bad_input, "{}: there is no tokenizer.json{}", folder_,
                protobuf ? " (tokenizer.model is not read; save the tokenizer with transformers to get one)" : "");
        }
        HETERO_TRY(config_, read_json_if_there(path("config.json")));
        if (const Json* rows = config_ ? member(*config_, "vocab_size") : nullptr;
            rows != nullptr && rows->is_number_unsigned()) {
            rows_ = rows->get<std::uint64_t>();
        }
        HETERO_TRY(const Json json, read_json(path("tokenizer.json")));
        if (auto status = read_tokenizer(json); !status) return fail_with(status.error(), path("tokenizer.json"));
        HETERO_CHECK(read_configs());
        return std::move(parts_);
    }

private:
    [[nodiscard]] std::string path(std::string_view name) const {
        return (std::filesystem::path(folder_) / name).string();
    }

    Status read_tokenizer(const Json& json) {
        const Json* model = member(json, "model");
        if (model == nullptr || !model->is_object()) return fail(Errc::bad_input, "\"model\" is missing");
        HETERO_CHECK(read_model_kind(*model));
        HETERO_CHECK(read_normalizer(member(json, "normalizer"), parts_));
        HETERO_CHECK(read_pre_tokenizer(member(json, "pre_tokenizer"), parts_));
        HETERO_CHECK(read_decoder(member(json, "decoder"), parts_));
        HETERO_TRY(first_token_, read_post_processor(member(json, "post_processor")));
        HETERO_CHECK(read_vocabulary(*model, member(json, "added_tokens")));
        HETERO_CHECK(read_merges(*model));
        if (const Json* unknown = member(*model, "unk_token")) {
            if (!unknown->is_string())
                return fail(Errc::bad_input, "model: \"unk_token\" is {}, a string is expected", unknown->type_name());
            const TokenId id = parts_.vocabulary.find(unknown->get_ref<const std::string&>());
            if (id < 0)
                return fail(Errc::bad_input, "model: \"unk_token\" is '{}', which is not in the vocabulary",
                            unknown->get_ref<const std::string&>());
            parts_.unknown = id;
        }
        return {};
    }

    Status read_model_kind(const Json& model) {
        if (member(model, "type") != nullptr) {
            HETERO_TRY(const std::string_view type, text_of(model, "type", "model"));
            if (type != "BPE") return fail(Errc::bad_input, "model '{}' is not implemented; known is: BPE", type);
        }
        if (const Json* dropout = member(model, "dropout");
            dropout != nullptr && !(dropout->is_number() && dropout->get<double>() == 0.0))
            return fail(Errc::bad_input, "model: \"dropout\" is not implemented");
        for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (const Json* affix = member(model, key);
                affix != nullptr && !(affix->is_string() && affix->get_ref<const std::string&>().empty()))
                return fail(Errc::bad_input, "model: \"{}\" is not implemented", key);
        HETERO_TRY(parts_.byte_fallback, flag_of(model, "byte_fallback", false, "model"));
        HETERO_TRY(parts_.fuse_unknown, flag_of(model, "fuse_unk", false, "model"));
        HETERO_TRY(parts_.ignore_merges, flag_of(model, "ignore_merges", false, "model"));
        return {};
    }

    Status read_vocabulary(const Json& model, const Json* added) {
        const Json* vocab = member(model, "vocab");
        if (vocab == nullptr || !vocab->is_object())
            return fail(Errc::bad_input, "model: \"vocab\" is missing or not an object");
        if (added != nullptr && !added->is_array()) return fail(Errc::bad_input, "\"added_tokens\" is not a list");
        const std::size_t count = vocab->size() + (added != nullptr ? added->size() : 0);
        // Ids may leave holes, but not so many that a small file asks for much memory.
        const std::size_t most = 2 * count + 4096;
        texts_.assign(count, {});
        kinds_.assign(count, TokenKind::hole);
        for (const auto& [text, value] : vocab->items()) {
            HETERO_TRY(const TokenId id, id_of(value, "model: vocab"));
            HETERO_CHECK(place(id, text, TokenKind::normal, most));
        }
        if (added != nullptr)
            for (const Json& item : *added) HETERO_CHECK(read_added(item, *vocab, most));
        while (!kinds_.empty() && kinds_.back() == TokenKind::hole) {
            kinds_.pop_back();
            texts_.pop_back();
        }
        for (std::size_t i = 0; i < texts_.size(); ++i) {
            if (kinds_[i] != TokenKind::normal) continue;
            if (parts_.byte_level) {
                if (auto bytes = bytes_of_alphabet(texts_[i])) texts_[i] = std::move(*bytes);
            } else if (parts_.byte_fallback && parse_byte_token(texts_[i]) >= 0) {
                kinds_[i] = TokenKind::byte;
            }
        }
        HETERO_TRY(parts_.vocabulary, Vocabulary::make(std::move(texts_), std::move(kinds_)));
        return {};
    }

    Status place(TokenId id, const std::string& text, TokenKind kind, std::size_t most) {
        const auto at = static_cast<std::size_t>(id);
        if (at >= most)
            return fail(Errc::bad_input, "token '{}' has id {}; the file has too few tokens for that", text, id);
        if (at >= texts_.size()) {
            texts_.resize(at + 1);
            kinds_.resize(at + 1, TokenKind::hole);
        }
        if (kinds_[at] != TokenKind::hole && texts_[at] != text)
            return fail(Errc::bad_input, "tokens '{}' and '{}' have the same id {}", texts_[at], text, id);
        texts_[at] = text;
        kinds_[at] = kind;
        return {};
    }

    Status read_added(const Json& item, const Json& vocab, std::size_t most) {
        constexpr std::string_view where = "added_tokens";
        AddedToken token;
        const Json* id = member(item, "id");
        if (id == nullptr) return fail(Errc::bad_input, "added_tokens: an entry without \"id\"");
        HETERO_TRY(token.id, id_of(*id, where));
        if (static_cast<std::uint64_t>(token.id) >= rows_) return {};  // gemma3's text models: a token for images
        HETERO_TRY(token.text, text_of(item, "content", where));
        HETERO_TRY(token.special, flag_of(item, "special", false, where));
        HETERO_TRY(token.normalized, flag_of(item, "normalized", !token.special, where));
        HETERO_TRY(token.lstrip, flag_of(item, "lstrip", false, where));
        HETERO_TRY(token.rstrip, flag_of(item, "rstrip", false, where));
        HETERO_TRY(token.single_word, flag_of(item, "single_word", false, where));
        const auto it = vocab.find(token.text);
        if (it != vocab.end() && *it != token.id)
            return fail(Errc::bad_input, "added token '{}' has id {}, but {} in the vocabulary", token.text, token.id,
                        it->dump());
        const TokenKind plain = it != vocab.end() ? TokenKind::added : TokenKind::matched;
        HETERO_CHECK(place(token.id, token.text, token.special ? TokenKind::special : plain, most));
        parts_.added.push_back(std::move(token));
        return {};
    }

    [[nodiscard]] TokenId find_spelled(const std::string& text, std::string& bytes) const {
        bytes = text;
        if (parts_.byte_level)
            if (auto spelled = bytes_of_alphabet(text)) bytes = std::move(*spelled);
        return parts_.vocabulary.find(bytes);
    }

    Status read_merges(const Json& model) {
        const Json* merges = member(model, "merges");
        if (merges == nullptr || !merges->is_array())
            return fail(Errc::bad_input, "model: \"merges\" is missing or not a list");
        parts_.merges.reserve(merges->size());
        std::string left, right, left_bytes, right_bytes;
        for (std::size_t i = 0; i < merges->size(); ++i) {
            const Json& item = (*merges)[i];
            if (item.is_string()) {
                const auto& pair = item.get_ref<const std::string&>();
                const std::size_t space = pair.find(' ');
                if (space == std::string::npos || pair.find(' ', space + 1) != std::string::npos)
                    return fail(Errc::bad_input, "model: merge {} ('{}') is not two tokens with a space between them",
                                i, pair);
                left = pair.substr(0, space);
                right = pair.substr(space + 1);
            } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
                left = item[0].get_ref<const std::string&>();
                right = item[1].get_ref<const std::string&>();
            } else {
                return fail(Errc::bad_input, "model: merge {} is neither a string nor a pair of strings", i);
            }
            Merge merge;
            merge.left = find_spelled(left, left_bytes);
            merge.right = find_spelled(right, right_bytes);
            merge.result = parts_.vocabulary.find(left_bytes + right_bytes);
            if (merge.left < 0 || merge.right < 0 || merge.result < 0)
                return fail(Errc::bad_input,
                            "model: merge {} ('{}' and '{}') names a token that the vocabulary does not have", i, left,
                            right);
            parts_.merges.push_back(merge);
        }
        return {};
    }

    // "bos_token": "x" or {"content": "x"}; -1 where it is missing or not in the vocabulary.
    [[nodiscard]] TokenId named_token(const Json& config, const char* key) const {
        const Json* value = member(config, key);
        if (value != nullptr && value->is_object()) value = member(*value, "content");
        return value != nullptr && value->is_string() ? parts_.vocabulary.find(value->get_ref<const std::string&>())
                                                      : -1;
    }

    Status add_eos_ids(const std::optional<Json>& config, std::string_view file) {
        const Json* ids = config ? member(*config, "eos_token_id") : nullptr;
        if (ids == nullptr) return {};
        const Json list = ids->is_array() ? *ids : Json::array({*ids});
        for (const Json& item : list) {
            HETERO_TRY(const TokenId id, id_of(item, path(file) + ": eos_token_id"));
            if (!parts_.vocabulary.contains(id))
                return fail(Errc::bad_input, "{}: eos_token_id is {}, but the vocabulary has {} tokens", path(file), id,
                            parts_.vocabulary.size());
            add_eos(id);
        }
        return {};
    }

    void add_eos(TokenId id) {
        if (std::find(parts_.eos.begin(), parts_.eos.end(), id) == parts_.eos.end()) parts_.eos.push_back(id);
    }

    Status read_configs() {
        HETERO_TRY(const auto config, read_json_if_there(path("tokenizer_config.json")));
        if (config) {
            if (const TokenId id = named_token(*config, "bos_token"); id >= 0) parts_.bos = id;
            if (const TokenId id = named_token(*config, "eos_token"); id >= 0) add_eos(id);
            if (const TokenId id = named_token(*config, "pad_token"); id >= 0) parts_.padding = id;
        }
        if (first_token_) {
            const TokenId id = parts_.vocabulary.find(*first_token_);
            if (id < 0)
                return fail(Errc::bad_input, "{}: post_processor adds '{}', which is not in the vocabulary",
                            path("tokenizer.json"), *first_token_);
            if (parts_.bos && *parts_.bos != id)
                return fail(Errc::bad_input, "{}: post_processor adds token {}, but bos_token is {}",
                            path("tokenizer.json"), id, *parts_.bos);
            parts_.bos = id;
            parts_.adds_bos = true;
        }
        if (config) {
            HETERO_TRY(parts_.adds_bos,
                       flag_of(*config, "add_bos_token", parts_.adds_bos, path("tokenizer_config.json")));
            HETERO_TRY(const bool adds_eos, flag_of(*config, "add_eos_token", false, path("tokenizer_config.json")));
            if (adds_eos)
                return fail(Errc::bad_input,
                            "{}: add_eos_token is true: a prompt that ends the text cannot be continued",
                            path("tokenizer_config.json"));
        }
        HETERO_TRY(const auto generation, read_json_if_there(path("generation_config.json")));
        HETERO_CHECK(add_eos_ids(generation, "generation_config.json"));
        HETERO_CHECK(add_eos_ids(config_, "config.json"));
        return read_chat_template(config);
    }

    Status read_chat_template(const std::optional<Json>& config) {
        std::error_code ignored;
        if (std::filesystem::exists(path("chat_template.jinja"), ignored)) {
            HETERO_TRY(const io::MappedFile file, io::MappedFile::open(path("chat_template.jinja")));
            parts_.chat_template.emplace(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
            return {};
        }
        const Json* text = config ? member(*config, "chat_template") : nullptr;
        if (text != nullptr && text->is_array()) {  // several: [{"name": "default", "template": "..."}, ...]
            const Json* chosen = nullptr;
            for (const Json& item : *text)
                if (const Json* name = member(item, "name"); name != nullptr && *name == "default")
                    chosen = member(item, "template");
            text = chosen;
        }
        if (text == nullptr) return {};
        if (!text->is_string())
            return fail(Errc::bad_input, "{}: chat_template is {}, a string is expected", path("tokenizer_config.json"),
                        text->type_name());
        parts_.chat_template = text->get<std::string>();
        return {};
    }

    std::string folder_;
    std::optional<Json> config_;                                      // of the model
    std::uint64_t rows_ = std::numeric_limits<std::uint64_t>::max();  // of the embedding
    TokenizerParts parts_;
    std::vector<std::string> texts_;
    std::vector<TokenKind> kinds_;
    std::optional<std::string> first_token_;
};

}  // namespace

Result<TokenizerParts> parts_from_folder(const std::string& folder) {
    try {
        return Loader(folder).load();
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: out of memory for the tokenizer", folder);
    } catch (const nlohmann::json::exception& e) {
        return fail(Errc::bad_input, "{}: {}", folder, e.what());
    }
}

}  // namespace tokenizer

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_folder(const std::string& folder) {
    try {
        HETERO_TRY(tokenizer::TokenizerParts parts, tokenizer::parts_from_folder(folder));
        return tokenizer::make_tokenizer(std::move(parts));
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: out of memory for the tokenizer", folder);
    }
}

}  // namespace hetero
