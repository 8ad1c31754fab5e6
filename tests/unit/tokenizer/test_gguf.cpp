// Tokenizers from GGUF metadata: SentencePiece models, defaults, and files that are wrong.
#include <limits>

#include "fixtures.h"
#include "gguf_writer.h"
#include "tokenizer/split.h"

using namespace hetero;
using namespace hetero::test;
using Ids = std::vector<TokenId>;
using nlohmann::json;

namespace {

// What a test changes in an otherwise good file.
struct Meta {
    std::string model = "gpt2", pre = "gpt-2", name, chat;
    std::vector<std::string> tokens, merges;
    std::vector<std::int32_t> types;
    std::vector<float> scores;
    std::optional<bool> add_bos, add_eos, space_prefix, squeeze;
    std::optional<std::uint32_t> bos, eos, eot, unknown;

    [[nodiscard]] std::string bytes() const {
        GgufWriter out;
        out.text("general.architecture", "llama");
        if (!name.empty()) out.text("general.name", name);
        if (!model.empty()) out.text("tokenizer.ggml.model", model);
        if (!pre.empty()) out.text("tokenizer.ggml.pre", pre);
        out.texts("tokenizer.ggml.tokens", tokens);
        if (!types.empty()) out.i32s("tokenizer.ggml.token_type", types);
        if (!merges.empty()) out.texts("tokenizer.ggml.merges", merges);
        if (!scores.empty()) out.f32s("tokenizer.ggml.scores", scores);
        const auto flag = [&](const char* key, const std::optional<bool>& value) {
            if (value) out.boolean(std::string("tokenizer.ggml.") + key, *value);
        };
        const auto id = [&](const char* key, const std::optional<std::uint32_t>& value) {
            if (value) out.u32(std::string("tokenizer.ggml.") + key, *value);
        };
        flag("add_bos_token", add_bos);
        flag("add_eos_token", add_eos);
        flag("add_space_prefix", space_prefix);
        flag("remove_extra_whitespaces", squeeze);
        id("bos_token_id", bos);
        id("eos_token_id", eos);
        id("eot_token_id", eot);
        id("unknown_token_id", unknown);
        if (!chat.empty()) out.text("tokenizer.chat_template", chat);
        return out.bytes();
    }
};

Result<std::shared_ptr<const Tokenizer>> load(const Meta& meta) {
    const TempDir folder;
    folder.write("model.gguf", meta.bytes());
    auto file = io::GgufFile::open(folder.path() + "/model.gguf");
    REQUIRE_MESSAGE(file.has_value(), (file ? "" : file.error().message));
    return Tokenizer::from_gguf(**file);
}

std::shared_ptr<const Tokenizer> good(const Meta& meta) {
    auto tokenizer = load(meta);
    REQUIRE_MESSAGE(tokenizer.has_value(), (tokenizer ? "" : tokenizer.error().message));
    return *tokenizer;
}

void refused(const Meta& meta, const std::vector<std::string>& named) {
    const auto tokenizer = load(meta);
    REQUIRE_FALSE(tokenizer.has_value());
    CAPTURE(tokenizer.error().message);
    CHECK(tokenizer.error().code == Errc::bad_input);
    CHECK(tokenizer.error().message.find("model.gguf") != std::string::npos);
    CHECK(tokenizer.error().message.find('\n') == std::string::npos);
    for (const auto& text : named) CHECK(tokenizer.error().message.find(text) != std::string::npos);
}

// a, b, ab, and a control token.
Meta small() {
    Meta meta;
    meta.tokens = {"<|end|>", "a", "b", "ab", "Ġ", "Ġab"};
    meta.types = {3, 1, 1, 1, 1, 1};
    meta.merges = {"a b", "Ġ ab"};
    return meta;
}

// The test vocabulary of tokenizer.json as a SentencePiece model: scores fall in the order of the merges.
Meta sentencepiece(const json& source) {
    Meta meta;
    meta.model = "llama";
    meta.pre = "default";
    const auto& vocab = source["model"]["vocab"];
    meta.tokens.resize(vocab.size());
    meta.types.assign(vocab.size(), 1);
    meta.scores.assign(vocab.size(), -1e6F);
    for (const auto& [text, id] : vocab.items()) {
        meta.tokens[id] = text;
        if (text.size() == 6 && text.starts_with("<0x")) meta.types[id] = 6;
    }
    for (const auto& token : source["added_tokens"]) meta.types[token["id"]] = token["content"] == "<unk>" ? 2 : 3;
    float score = 0;
    for (const auto& merge : source["model"]["merges"])
        meta.scores[vocab[merge[0].get<std::string>() + merge[1].get<std::string>()]] = score--;
    meta.bos = 1;
    meta.eos = 2;
    meta.unknown = 3;
    return meta;
}

json spm512() { return json::parse(read_file(testdata("tokenizer/spm512/tokenizer.json"))); }

}  // namespace

TEST_CASE("a SentencePiece model from GGUF gives the ids of its tokenizer.json") {
    Meta meta = sentencepiece(spm512());
    meta.space_prefix = false;
    const auto gguf = good(meta);
    const auto folder = load_folder(testdata("tokenizer/spm512"));
    for (const auto& line : jsonl("tokenizer/spm512/golden.jsonl")) {
        CAPTURE(line["name"].get<std::string>());
        const Ids ids = gguf->encode(line["text"].get<std::string>(), SpecialText::parse);
        CHECK(ids == line["ids"].get<Ids>());
        CHECK(to_valid_utf8(gguf->decode(ids, false)) == line["decoded"].get<std::string>());
    }
    CHECK(to_hex(gguf->digest()) == to_hex(folder->digest()));
    CHECK(gguf->bos() == std::optional<TokenId>(1));
    CHECK(gguf->adds_bos());
    CHECK(gguf->eos() == folder->eos());
}

TEST_CASE("the space prefix of Llama 2, from GGUF and tokenizer.json") {
    const auto gguf = good(sentencepiece(spm512()));  // add_space_prefix is true where it is missing
    json source = spm512();
    const std::string mark = "\xE2\x96\x81";
    source["normalizer"] = {{"type", "Sequence"},
                            {"normalizers",
                             {{{"type", "Prepend"}, {"prepend", mark}},
                              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}}}}};
    source["pre_tokenizer"] = nullptr;
    source["decoder"]["decoders"].push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    const TempDir folder;
    folder.write("tokenizer.json", source.dump());
    const auto json_tokenizer = load_folder(folder.path());
    for (const auto& line : jsonl("tokenizer/spm512/golden.jsonl")) {
        const std::string text = line["text"];
        CAPTURE(text);
        for (const auto special : {SpecialText::plain, SpecialText::parse})
            CHECK(gguf->encode(text, special) == json_tokenizer->encode(text, special));
        const Ids ids = gguf->encode(text, SpecialText::plain);
        // U+2581 in a text cannot be told from a space afterwards.
        const std::string spaced = tokenizer::replace_all(text, tokenizer::Pattern::exact(mark), " ");
        CHECK(gguf->decode(ids, false) == spaced);
        CHECK(json_tokenizer->decode(ids, false) == spaced);
    }
    CHECK(to_hex(gguf->digest()) == to_hex(json_tokenizer->digest()));
    CHECK(gguf->encode("the", SpecialText::plain) !=
          load_folder(testdata("tokenizer/spm512"))->encode("the", SpecialText::plain));
    const Ids ids = gguf->encode("a<bos>b", SpecialText::parse);  // each text beside a special token has its prefix
    CHECK(gguf->decode(ids, false) == "a<bos> b");
    CHECK(gguf->decode(ids, true) == "a b");
}

TEST_CASE("byte fallback, unknown characters and equal scores") {
    Meta meta;
    meta.model = "llama";
    meta.tokens = {"<unk>", "<s>", "</s>", "a", "aa", "b", "\xE2\x96\x81"};
    meta.types = {2, 3, 3, 1, 1, 1, 1};
    meta.scores = {0, 0, 0, -1, -2, -3, -4};
    meta.space_prefix = false;
    const auto tokenizer = good(meta);
    CHECK(tokenizer->encode("aaa", SpecialText::plain) == Ids{4, 3});  // leftmost first
    CHECK(tokenizer->encode("a\xC3\xA9\xE4\xBD\xA0"
                            "b",
                            SpecialText::plain) == Ids{3, 0, 5});  // without byte tokens: unknown, fused
    CHECK(tokenizer->encode("<s>", SpecialText::plain) == Ids{0});
    CHECK(tokenizer->encode("<s>", SpecialText::parse) == Ids{1});
    CHECK(tokenizer->bos() == std::optional<TokenId>(1));  // the usual places
    CHECK(tokenizer->eos() == Ids{2});

    meta.tokens.insert(meta.tokens.end(), {"<0xC3>", "<0xA9>"});
    meta.types.insert(meta.types.end(), {6, 6});
    meta.scores.insert(meta.scores.end(), {0, 0});
    const auto bytes = good(meta);
    CHECK(bytes->encode("\xC3\xA9", SpecialText::plain) == Ids{7, 8});
    CHECK(bytes->decode(Ids{7, 8}, false) == "\xC3\xA9");
    CHECK(bytes->piece(7, false) == "\xC3");
    CHECK(bytes->encode("<0xC3>", SpecialText::plain) == Ids{0});  // typed text is not a byte
}

TEST_CASE(
    "added tokens are matched in any text, special ones where parsing is asked for, Phi-3's take the space after "
    "them") {
    Meta meta = small();
    meta.tokens.insert(meta.tokens.end(), {"<tool>", "abab"});
    meta.types.insert(meta.types.end(), {4, 4});
    CHECK(good(meta)->encode("<tool>ab<|end|> ab", SpecialText::plain) ==
          Ids{6, 3, 5});  // the rest is not in this vocabulary
    CHECK(good(meta)->encode("ab<|end|> ababab", SpecialText::parse) == Ids{3, 0, 4, 7, 3});
    meta.name = "Phi-3 mini";
    CHECK(good(meta)->encode("ab<|end|> \n ab", SpecialText::parse) == Ids{3, 0, 3});
}

TEST_CASE("BOS and EOS as the file says") {
    Meta meta = small();
    CHECK_FALSE(good(meta)->bos().has_value());
    CHECK_FALSE(good(meta)->adds_bos());
    CHECK(good(meta)->eos() == Ids{0});  // <|end|>, by its name
    meta.pre = "llama-bpe";
    CHECK_FALSE(good(meta)->adds_bos());  // wanted by default, but there is none
    meta.bos = 3;
    CHECK(good(meta)->adds_bos());
    meta.add_bos = false;
    CHECK_FALSE(good(meta)->adds_bos());
    meta.eos = 4;
    meta.eot = 5;
    CHECK(good(meta)->eos() == Ids{4, 5, 0});
    meta.types[0] = 1;  // an ordinary token of that name ends nothing
    CHECK(good(meta)->eos() == Ids{4, 5});
}

TEST_CASE("files that are wrong are refused, naming what is") {
    Meta meta = small();
    meta.model = "";
    refused(meta, {"tokenizer.ggml.model"});
    meta.model = "bert";
    refused(meta, {"'bert'", "gpt2", "llama"});
    meta = small();
    meta.pre = "";
    refused(meta, {"tokenizer.ggml.pre"});
    meta.pre = "klingon-bpe";
    refused(meta, {"'klingon-bpe'", "llama-bpe"});
    meta = small();
    meta.types.pop_back();
    refused(meta, {"tokenizer.ggml.token_type", "5", "6"});
    meta = small();
    meta.types[2] = 9;
    refused(meta, {"token 2", "type 9"});
    meta = small();
    meta.merges.clear();
    refused(meta, {"tokenizer.ggml.merges"});
    for (const char* merge : {"a c", "ab ab", "ab", "", " ", "a ", "Ġ €"}) {
        CAPTURE(merge);
        meta = small();
        meta.merges.push_back(merge);
        refused(meta, {"entry 2"});
    }
    meta = small();
    meta.tokens[2] = "a";
    refused(meta, {"1", "2", "same text"});
    meta = small();
    meta.tokens[2] = "\xFF";
    refused(meta, {"token 2", "UTF-8"});
    meta = small();
    meta.bos = 6;
    refused(meta, {"bos_token_id", "6"});
    meta = small();
    meta.eos = 4294967295U;
    refused(meta, {"eos_token_id", "4294967295"});
    meta = small();
    meta.add_eos = true;
    refused(meta, {"add_eos_token"});
    meta = small();
    meta.tokens.clear();
    meta.types.clear();
    refused(meta, {"tokenizer.ggml.tokens"});

    const Meta spm = sentencepiece(spm512());
    meta = spm;
    meta.scores.pop_back();
    refused(meta, {"tokenizer.ggml.scores", "511", "512"});
    meta = spm;
    meta.scores.clear();
    refused(meta, {"tokenizer.ggml.scores"});
    meta = spm;
    meta.scores[7] = std::numeric_limits<float>::quiet_NaN();
    refused(meta, {"token 7", "NaN"});
    meta = spm;
    meta.types.clear();
    refused(meta, {"token_type"});
    meta = spm;
    meta.types[400] = 6;
    refused(meta, {"token 400", "<0xXX>"});
    meta = spm;
    meta.squeeze = true;
    refused(meta, {"remove_extra_whitespaces"});
    meta = small();
    meta.tokens[0] = std::string(5000, 'x');
    refused(meta, {"5000"});
}

TEST_CASE("a token list of another length than its types is refused with both counts") {
    const auto real = smollm2();
    if (real == nullptr) return;
    Meta meta;
    for (std::size_t i = 0; i < real->vocab_size(); ++i) meta.tokens.push_back(fmt::format("t{}", i));
    meta.types.assign(real->vocab_size() - 1, 1);
    meta.merges = {"t 1"};
    refused(meta, {"49151", "49152"});
}
