// Tokenizers from a folder to GGUF and back: the same tokens, the same ids for all golden lines.
#include "io/gguf.h"
#include "tokenizer/export.h"
#include "tokenizer/named_splits.h"
#include "unit/convert/carry_out.h"
#include "unit/tokenizer/fixtures.h"

namespace {

using namespace hetero;
using namespace hetero::test;
using nlohmann::json;
using Ids = std::vector<TokenId>;

json parsed(const std::string& relative) { return json::parse(read_file(testdata(relative))); }

std::shared_ptr<const Tokenizer> from_gguf(const std::vector<std::pair<std::string, io::GgufMetaValue>>& metadata,
                                           const TempDir& dir) {
    GgufBytes out;
    for (const auto& [key, value] : metadata) {
        const auto [type, bytes] = gguf_value(value);
        out.key(key, type, bytes);
    }
    return load_gguf(dir.write("tokenizer.gguf", out.bytes()));
}

std::shared_ptr<const Tokenizer> from_folder(const tokenizer::FolderTokenizer& files, const TempDir& dir) {
    dir.write("back/tokenizer.json", files.tokenizer_json);
    dir.write("back/tokenizer_config.json", files.tokenizer_config_json);
    return load_folder(dir / "back");
}

// A folder's tokenizer, as a GGUF, and as a folder again.
struct Trip {
    std::shared_ptr<const Tokenizer> folder, gguf, back;
    std::vector<std::string> warnings;
};
Trip trip(const std::string& folder, std::uint32_t rows) {
    Trip out;
    const TempDir dir;
    out.folder = load_folder(folder);
    const auto words = must(tokenizer::to_gguf(must(tokenizer::parts_from_folder(folder)), rows));
    out.warnings = words.warnings;
    out.gguf = from_gguf(words.metadata, dir);
    const auto file = must(io::GgufFile::open(dir / "tokenizer.gguf"));
    out.back = from_folder(must(tokenizer::to_folder(must(tokenizer::parts_from_gguf(*file)), 512)), dir);
    return out;
}

void check_same(const Tokenizer& one, const Tokenizer& other, const std::vector<json>& lines) {
    CHECK(to_hex(one.digest()) == to_hex(other.digest()));
    CHECK(one.vocab_size() == other.vocab_size());
    CHECK(one.bos() == other.bos());
    CHECK(one.adds_bos() == other.adds_bos());
    CHECK(one.eos() == other.eos());
    for (const json& line : lines) {
        const std::string text = line["text"];
        CAPTURE(text);
        for (const SpecialText special : {SpecialText::plain, SpecialText::parse}) {
            const Ids ids = one.encode(text, special);
            CHECK(ids == other.encode(text, special));
            CHECK(one.decode(ids, false) == other.decode(ids, false));
        }
        if (line.contains("ids")) CHECK(other.encode(text, SpecialText::parse) == line["ids"].get<Ids>());
    }
    const std::vector<ChatMessage> chat = {{"user", "Hello"}, {"assistant", "Hi."}, {"user", "Bye"}};
    const auto mine = one.format_chat(chat, true), theirs = other.format_chat(chat, true);
    REQUIRE(mine.has_value() == theirs.has_value());
    if (mine) CHECK(*mine == *theirs);
}

std::string all(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
}

const std::string mark = "\xE2\x96\x81";

// The test vocabulary with Llama 2's normalizer, which puts a space before each text.
json with_prefix() {
    json source = parsed("tokenizer/spm512/tokenizer.json");
    source["normalizer"] = {{"type", "Sequence"},
                            {"normalizers",
                             {{{"type", "Prepend"}, {"prepend", mark}},
                              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}}}}};
    source["pre_tokenizer"] = nullptr;
    source["decoder"]["decoders"].push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    return source;
}

}  // namespace

TEST_CASE("byte-level BPE") {
    const Trip t = trip(testdata("tokenizer/bytebpe512"), 512);
    CHECK(t.warnings.empty());
    const auto lines = jsonl("tokenizer/bytebpe512/golden.jsonl");
    REQUIRE(lines.size() > 100);
    check_same(*t.folder, *t.gguf, lines);
    check_same(*t.folder, *t.back, lines);
    CHECK(t.gguf->format_chat(std::vector<ChatMessage>{{"user", "Hello"}}, true).has_value());
}

TEST_CASE("SentencePiece BPE, whose merges become scores and merges again") {
    const auto lines = jsonl("tokenizer/spm512/golden.jsonl");
    REQUIRE(lines.size() > 100);
    const Trip t = trip(testdata("tokenizer/spm512"), 512);
    check_same(*t.folder, *t.gguf, lines);
    check_same(*t.folder, *t.back, lines);

    // Its merges were learnt as such: not every pair that gives a token is among them, and that is said.
    CHECK(all(t.warnings).find("pairs that give a token") != std::string::npos);
}

TEST_CASE("the space before a text") {
    const auto lines = jsonl("tokenizer/spm512/golden.jsonl");
    std::vector<json> texts;
    for (const json& line : lines) texts.push_back({{"text", line["text"]}});
    const TempDir dir;
    json source = with_prefix();
    const std::string config = read_file(testdata("tokenizer/spm512/tokenizer_config.json"));
    dir.write("prefix/tokenizer_config.json", config);
    dir.write("metaspace/tokenizer_config.json", config);
    dir.write("prefix/tokenizer.json", source.dump());
    const Trip prefix = trip(dir / "prefix", 512);
    check_same(*prefix.folder, *prefix.gguf, texts);
    check_same(*prefix.folder, *prefix.back, texts);
    CHECK(prefix.folder->encode("the", SpecialText::plain) !=
          load_folder(testdata("tokenizer/spm512"))->encode("the", SpecialText::plain));

    // Newer files say it by a pre-tokenizer: one tokenizer, and one name for it.
    source["normalizer"] = nullptr;
    source["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", mark}, {"prepend_scheme", "first"}, {"split", false}};
    dir.write("metaspace/tokenizer.json", source.dump());
    const Trip metaspace = trip(dir / "metaspace", 512);
    CHECK(to_hex(metaspace.folder->digest()) == to_hex(prefix.folder->digest()));
    CHECK(to_hex(metaspace.folder->digest()) == to_hex(metaspace.gguf->digest()));
    CHECK(metaspace.folder->encode("the the", SpecialText::plain) ==
          metaspace.gguf->encode("the the", SpecialText::plain));
    CHECK(all(metaspace.warnings).find("first text only") != std::string::npos);

    source["pre_tokenizer"]["split"] = true;
    dir.write("split/tokenizer.json", source.dump());
    const auto refused = tokenizer::to_gguf(must(tokenizer::parts_from_folder(dir / "split")), 512);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().message.find("metaspace") != std::string::npos);
}

TEST_CASE("scores that say all that the merges say") {
    // Every pair that gives a token is a merge, in the order of the tokens: as transformers makes them.
    json source = parsed("tokenizer/spm512/tokenizer.json");
    const TempDir dir;
    dir.write("a/tokenizer.json", source.dump());
    const auto words = must(tokenizer::to_gguf(must(tokenizer::parts_from_folder(dir / "a")), 512));
    from_gguf(words.metadata, dir);
    const auto gguf = must(io::GgufFile::open(dir / "tokenizer.gguf"));
    const auto closed = must(tokenizer::to_folder(must(tokenizer::parts_from_gguf(*gguf)), 512));
    dir.write("c/tokenizer.json", closed.tokenizer_json);
    dir.write("c/tokenizer_config.json", closed.tokenizer_config_json);
    const Trip second = trip(dir / "c", 512);
    CHECK(second.warnings.empty());
    check_same(*second.folder, *second.gguf, {});
    CHECK(json::parse(closed.tokenizer_json)["model"]["merges"].size() > source["model"]["merges"].size());
}

TEST_CASE("each named split is known again, by the first name of its kind") {
    for (const tokenizer::NamedSplit& split : tokenizer::named_splits()) {
        CAPTURE(split.name);
        json source = parsed("tokenizer/bytebpe512/tokenizer.json");
        json list = json::array();
        for (const std::string_view pattern : split.patterns) {
            list.push_back(
                {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
        }
        list.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
        source["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", list}};
        source["normalizer"] = split.nfc ? json{{"type", "NFC"}} : json();
        source["model"]["ignore_merges"] = split.ignore_merges;
        const TempDir dir;
        dir.write("tokenizer.json", source.dump());
        const Trip t = trip(dir.path(), 512);
        check_same(*t.folder, *t.gguf, {});
        check_same(*t.folder, *t.back, {});
        for (const char* text : {"It's 12345 cafe\xCC\x81 \xE4\xBD\xA0\xE5\xA5\xBD  \n\n x+=1;", "DON'T"}) {
            CHECK(t.folder->encode(text, SpecialText::plain) == t.gguf->encode(text, SpecialText::plain));
            CHECK(t.folder->encode(text, SpecialText::plain) == t.back->encode(text, SpecialText::plain));
        }
    }
}

TEST_CASE("a split without a name is refused, showing it") {
    json source = parsed("tokenizer/bytebpe512/tokenizer.json");
    source["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a-z]+|\\s+";
    const TempDir dir;
    dir.write("tokenizer.json", source.dump());
    const auto words = tokenizer::to_gguf(must(tokenizer::parts_from_folder(dir.path())), 512);
    REQUIRE_FALSE(words.has_value());
    CAPTURE(words.error().message);
    for (const char* text : {"[a-z]+|\\s+", "tokenizer.ggml.pre", "llama-bpe", "qwen2"}) {
        CHECK(words.error().message.find(text) != std::string::npos);
    }
    // NFC, which no name of this split has.
    source = parsed("tokenizer/bytebpe512/tokenizer.json");
    source["normalizer"] = {{"type", "NFC"}};
    dir.write("tokenizer.json", source.dump());
    CHECK_FALSE(tokenizer::to_gguf(must(tokenizer::parts_from_folder(dir.path())), 512).has_value());
}

TEST_CASE("rows of the embedding that no token has are filled up, and do not count") {
    const Trip t = trip(testdata("tokenizer/bytebpe512"), 520);
    CHECK(t.gguf->vocab_size() == 512);
    check_same(*t.folder, *t.gguf, jsonl("tokenizer/bytebpe512/golden.jsonl"));
    check_same(*t.folder, *t.back, {});
    const auto words =
        must(tokenizer::to_gguf(must(tokenizer::parts_from_folder(testdata("tokenizer/bytebpe512"))), 520));
    for (const auto& [key, value] : words.metadata) {
        if (key != "tokenizer.ggml.tokens") continue;
        const auto& tokens = std::get<std::vector<std::string>>(value);
        REQUIRE(tokens.size() == 520);
        CHECK(tokens[519] == "[PAD519]");
    }
    const auto few = tokenizer::to_gguf(must(tokenizer::parts_from_folder(testdata("tokenizer/bytebpe512"))), 511);
    REQUIRE_FALSE(few.has_value());
    CHECK(few.error().message.find("512 tokens") != std::string::npos);
}

TEST_CASE("an added token beyond the embedding is none of the model's") {
    json source = parsed("tokenizer/bytebpe512/tokenizer.json");
    source["added_tokens"].push_back({{"id", 512}, {"content", "<image>"}, {"special", true}});
    const TempDir dir;
    dir.write("tokenizer.json", source.dump());
    CHECK(load_folder(dir.path())->vocab_size() == 513);
    dir.write("config.json", R"({"vocab_size": 512})");
    CHECK(load_folder(dir.path())->vocab_size() == 512);
    CHECK(to_hex(load_folder(dir.path())->digest()) == to_hex(load_folder(testdata("tokenizer/bytebpe512"))->digest()));
}

TEST_CASE("what a GGUF does not say of added tokens is said") {
    json source = parsed("tokenizer/bytebpe512/tokenizer.json");
    source["added_tokens"][4]["rstrip"] = true;
    source["added_tokens"].push_back({{"id", 512}, {"content", "<tool>"}, {"special", false}, {"single_word", true}});
    const TempDir dir;
    dir.write("tokenizer.json", source.dump());
    const Trip t = trip(dir.path(), 513);
    CHECK(all(t.warnings).find("<|im_end|>") != std::string::npos);
    CHECK(all(t.warnings).find("and 1 more") != std::string::npos);
    check_same(*t.folder, *t.gguf, {});
    CHECK(t.gguf->encode("a <tool> b", SpecialText::plain) == t.back->encode("a <tool> b", SpecialText::plain));
}

TEST_CASE("several tokens that end a text") {
    const TempDir dir;
    dir.write("tokenizer.json", parsed("tokenizer/bytebpe512/tokenizer.json").dump());
    dir.write("config.json", R"({"eos_token_id": [2, 7, 0]})");
    const Trip t = trip(dir.path(), 512);
    CHECK(t.gguf->eos() == t.folder->eos());
    CHECK(t.gguf->eos()[1] == 7);
}
