// tokenizer.json and the files beside it: every part that is implemented, and those that are refused.
#include <functional>

#include "fixtures.h"

using namespace hetero;
using namespace hetero::test;
using Ids = std::vector<TokenId>;
using nlohmann::json;

namespace {

json base(const std::string& folder = "bytebpe512") {
    return json::parse(read_file(testdata("tokenizer/" + folder + "/tokenizer.json")));
}

// <e>, a, b, ab, the space and its merge with ab: a vocabulary to add to.
json tiny() {
    return json::parse(
        R"({"model": {"type": "BPE", "vocab": {"<e>": 0, "a": 1, "b": 2, "ab": 3, "Ġ": 4, "Ġab": 5, "c": 6},
        "merges": ["a b", "Ġ ab"]},
        "added_tokens": [{"id": 0, "content": "<e>", "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"}})");
}

using Files = std::vector<std::pair<std::string, std::string>>;

Result<std::shared_ptr<const Tokenizer>> load(const std::string& text, const Files& files = {}) {
    const TempDir folder;
    folder.write("tokenizer.json", text);
    for (const auto& [name, bytes] : files) folder.write(name, bytes);
    return Tokenizer::from_folder(folder.path());
}

std::shared_ptr<const Tokenizer> good(const json& source, const Files& files = {}) {
    auto tokenizer = load(source.dump(), files);
    REQUIRE_MESSAGE(tokenizer.has_value(), (tokenizer ? "" : tokenizer.error().message));
    return *tokenizer;
}

void refused(const std::string& text, const std::string& named, const Files& files = {}) {
    CAPTURE(named);
    const auto tokenizer = load(text, files);
    REQUIRE_FALSE(tokenizer.has_value());
    CAPTURE(tokenizer.error().message);
    CHECK(tokenizer.error().code == Errc::bad_input);
    CHECK(tokenizer.error().message.find(named) != std::string::npos);
    CHECK(tokenizer.error().message.find("hetero-test-") != std::string::npos);  // the folder
}

void refused(const std::function<void(json&)>& change, const std::string& named) {
    json source = tiny();
    change(source);
    refused(source.dump(), named);
}

Ids encode(const json& source, const std::string& text, SpecialText special = SpecialText::parse) {
    return good(source)->encode(text, special);
}

json added(const std::string& text, TokenId id, const json& flags = json::object()) {
    json token = {{"id", id}, {"content", text}, {"special", false}, {"normalized", false}};
    token.update(flags);
    return token;
}

}  // namespace

TEST_CASE("merges as strings and as pairs") {
    json source = base();
    for (auto& merge : source["model"]["merges"])
        merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    const auto strings = good(source);
    const auto pairs = load_folder(testdata("tokenizer/bytebpe512"));
    for (const auto& line : jsonl("tokenizer/bytebpe512/golden.jsonl"))
        CHECK(strings->encode(line["text"].get<std::string>(), SpecialText::parse) == line["ids"].get<Ids>());
    CHECK(to_hex(strings->digest()) == to_hex(pairs->digest()));
}

TEST_CASE("the flags of the model") {
    json source = tiny();
    CHECK(encode(source, "ab abc") == Ids{3, 5, 6});
    source["model"]["vocab"]["abc"] = 7;  // reached by no merge
    CHECK(encode(source, "abc") == Ids{3, 6});
    source["model"]["ignore_merges"] = true;
    CHECK(encode(source, "abc") == Ids{7});
    CHECK(encode(source, "a?b") == Ids{1, 2});  // a byte without a token is dropped, as there is none for unknown text
    source["model"]["unk_token"] = "<e>";
    CHECK(encode(source, "a??b") == Ids{1, 0, 0, 2});
    source["model"]["fuse_unk"] = true;
    CHECK(encode(source, "a??b") == Ids{1, 0, 2});
}

TEST_CASE("added tokens and their flags") {
    json source = tiny();
    auto& tokens = source["added_tokens"];
    tokens.push_back(added("[x]", 7));
    CHECK(encode(source, "a[x]ab") == Ids{1, 7, 3});
    CHECK(encode(source, "a[x]ab", SpecialText::plain) == Ids{1, 7, 3});  // not special: matched in any text
    CHECK(encode(source, "a<e>b", SpecialText::plain) ==
          Ids{1, 2});  // special: text, of which this vocabulary has nothing
    CHECK(encode(source, "a<e>b") == Ids{1, 0, 2});
    tokens.push_back(added("[x][x]", 8));
    CHECK(encode(source, "[x][x][x]") == Ids{8, 7});  // the longest at the leftmost place
    tokens.push_back(added("L", 9, {{"lstrip", true}}));
    CHECK(encode(source, "a \n Lab") == Ids{1, 9, 3});
    tokens.push_back(added("R", 10, {{"rstrip", true}}));
    CHECK(encode(source, "aR \xE3\x80\x80 ab") == Ids{1, 10, 3});
    tokens.push_back(added("W", 11, {{"single_word", true}}));
    CHECK(encode(source, "W aW W") == Ids{11, 4, 1, 4, 11});
    tokens.push_back(added("\xC3\xA9", 12, {{"normalized", true}}));
    source["normalizer"] = {{"type", "NFC"}};
    CHECK(encode(source,
                 "ae\xCC\x81"
                 "b") == Ids{1, 12, 2});
    CHECK(good(source)->decode(Ids{1, 12, 0, 2}, true) ==
          "a\xC3\xA9"
          "b");
}

TEST_CASE("Metaspace puts its sign where the scheme says") {
    json source =
        json::parse(R"({"model": {"type": "BPE", "vocab": {"▁": 0, "a": 1, "▁a": 2, "<s>": 3}, "merges": ["▁ a"]},
        "added_tokens": [{"id": 3, "content": "<s>", "special": true}],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}})");
    CHECK(encode(source, "a<s>a a") == Ids{2, 3, 1, 2});
    CHECK(good(source)->decode(Ids{2, 2}, false) == "a a");
    source["pre_tokenizer"]["prepend_scheme"] = "always";
    CHECK(encode(source, "a<s>a a") == Ids{2, 3, 2, 2});
    source["pre_tokenizer"]["prepend_scheme"] = "never";
    CHECK(encode(source, "a<s>a a") == Ids{1, 3, 1, 2});
}

TEST_CASE("BOS, EOS and the files beside tokenizer.json") {
    json source = tiny();
    CHECK(good(source)->eos().empty());
    CHECK_FALSE(good(source)->bos().has_value());
    source["post_processor"] =
        json::parse(R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<e>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}]})");
    CHECK(good(source)->bos() == std::optional<TokenId>(0));
    CHECK(good(source)->adds_bos());
    CHECK_FALSE(good(source, {{"tokenizer_config.json", R"({"add_bos_token": false})"}})->adds_bos());
    const Files files = {{"tokenizer_config.json", R"({"eos_token": {"content": "ab"}})"},
                         {"generation_config.json", R"({"eos_token_id": [1, 2]})"},
                         {"config.json", R"({"eos_token_id": 2})"}};
    CHECK(good(source, files)->eos() == Ids{3, 1, 2});
    refused(source.dump(), "7", {{"generation_config.json", R"({"eos_token_id": [7]})"}});
    refused(source.dump(), "-1", {{"config.json", R"({"eos_token_id": -1})"}});
    refused(source.dump(), "add_eos_token", {{"tokenizer_config.json", R"({"add_eos_token": true})"}});
    refused(source.dump(), "bos_token", {{"tokenizer_config.json", R"({"bos_token": "a"})"}});
    refused(source.dump(), "chat_template", {{"tokenizer_config.json", R"({"chat_template": 3})"}});
    refused(source.dump(), "tokenizer_config.json", {{"tokenizer_config.json", "{"}});
}

TEST_CASE("what is not implemented is refused by name") {
    refused([](json& j) { j["model"]["type"] = "Unigram"; }, "'Unigram'");
    refused([](json& j) { j["model"]["dropout"] = 0.1; }, "dropout");
    refused([](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix");
    refused([](json& j) { j["model"]["continuing_subword_prefix"] = "##"; }, "continuing_subword_prefix");
    refused([](json& j) { j["normalizer"] = {{"type", "Precompiled"}}; }, "'Precompiled'");
    refused(
        [](json& j) {
            j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}};
        },
        "'Lowercase'");
    refused([](json& j) { j["pre_tokenizer"] = {{"type", "BertPreTokenizer"}}; }, "'BertPreTokenizer'");
    refused(
        [](json& j) {
            j["pre_tokenizer"] = {{"type", "Sequence"},
                                  {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}};
        },
        "'Digits'");
    refused(
        [](json& j) {
            j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "\\w+"}}}, {"behavior", "Isolated"}};
        },
        "\\w");
    refused(
        [](json& j) {
            j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a|aa)*$"}}}, {"behavior", "Isolated"}};
        },
        "backtracks");
    refused(
        [](json& j) {
            j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Sideways"}};
        },
        "'Sideways'");
    refused([](json& j) { j["decoder"] = {{"type", "WordPiece"}}; }, "'WordPiece'");
    refused([](json& j) { j["decoder"] = nullptr; }, "decoder");
    refused([](json& j) { j["post_processor"] = {{"type", "BertProcessing"}}; }, "'BertProcessing'");
    refused(
        [](json& j) {
            j["post_processor"] = json::parse(
                R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<e>"}}]})");
        },
        "'<e>'");
}

TEST_CASE("files that are wrong are refused, naming what is") {
    refused([](json& j) { j.erase("model"); }, "model");
    refused([](json& j) { j["model"]["vocab"] = 3; }, "vocab");
    refused([](json& j) { j["model"]["vocab"]["a"] = "x"; }, "token id");
    refused([](json& j) { j["model"]["vocab"]["a"] = -1; }, "-1");
    refused([](json& j) { j["model"]["vocab"]["a"] = 2.5; }, "token id");
    refused([](json& j) { j["model"]["vocab"]["a"] = 4294967296; }, "4294967296");
    refused([](json& j) { j["model"]["vocab"]["a"] = 2000000000; }, "2000000000");
    refused([](json& j) { j["model"]["vocab"]["a"] = 2; }, "same id 2");
    refused(
        [](json& j) {
            j["model"]["vocab"] = json::object();
            j["added_tokens"] = json::array();
            j["model"]["merges"] = json::array();
        },
        "empty");
    refused([](json& j) { j["model"]["merges"].push_back("a x"); }, "merge 2");
    refused([](json& j) { j["model"]["merges"].push_back("a c"); }, "merge 2");
    refused([](json& j) { j["model"]["merges"].push_back("a b c"); }, "merge 2");
    refused([](json& j) { j["model"]["merges"].push_back({"a", 3}); }, "merge 2");
    refused([](json& j) { j["model"].erase("merges"); }, "merges");
    refused([](json& j) { j["model"]["unk_token"] = "nope"; }, "'nope'");
    refused([](json& j) { j["model"]["ignore_merges"] = "yes"; }, "ignore_merges");
    refused([](json& j) { j["added_tokens"][0]["id"] = 1; }, "'<e>'");
    refused([](json& j) { j["added_tokens"].push_back(added("[x]", 3)); }, "same id 3");
    refused([](json& j) { j["added_tokens"].push_back({{"id", 8}}); }, "content");
    refused([](json& j) { j["added_tokens"] = 3; }, "added_tokens");
    refused("", "not JSON");
    refused("{\"model\": ", "not JSON");
    refused("[]", "model");
    refused("\"\xFF\"", "not JSON");
    refused(std::string(100000, '['), "100000 levels");
    refused(std::string(1000, '{'), "1000 levels");

    const TempDir empty;
    const auto none = Tokenizer::from_folder(empty.path());
    REQUIRE_FALSE(none.has_value());
    CHECK(none.error().message.find("tokenizer.json") != std::string::npos);
    empty.write("tokenizer.model", "x");
    CHECK(Tokenizer::from_folder(empty.path()).error().message.find("tokenizer.model") != std::string::npos);
    CHECK_FALSE(Tokenizer::from_folder(empty.path() + "/nowhere").has_value());
}

TEST_CASE("the digest tells tokenizers apart") {
    std::vector<std::string> digests;
    const auto add = [&](const std::function<void(json&)>& change) {
        json source = tiny();
        change(source);
        digests.push_back(to_hex(good(source)->digest()));
    };
    add([](json&) {});
    add([](json& j) { j["model"]["merges"].erase(1); });
    add([](json& j) { j["model"]["vocab"]["d"] = 7; });
    add([](json& j) { j["added_tokens"][0]["special"] = false; });
    add([](json& j) { j["normalizer"] = {{"type", "NFC"}}; });
    add([](json& j) { j["pre_tokenizer"]["use_regex"] = false; });
    add([](json& j) {
        j["model"]["vocab"]["a"] = 2;
        j["model"]["vocab"]["b"] = 1;
    });
    add([](json& j) { std::swap(j["model"]["merges"][0], j["model"]["merges"][1]); });
    for (std::size_t i = 0; i < digests.size(); ++i)
        for (std::size_t k = i + 1; k < digests.size(); ++k) {
            CAPTURE(i);
            CAPTURE(k);
            CHECK(digests[i] != digests[k]);
        }
    CHECK(to_hex(good(tiny())->digest()) == digests[0]);
}
