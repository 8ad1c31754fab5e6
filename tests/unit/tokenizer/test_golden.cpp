// Ids equal to the reference tokenizers on every golden line.
#include "fixtures.h"
#include "tokenizer/utf8.h"

using namespace hetero;
using namespace hetero::test;
using Ids = std::vector<TokenId>;

namespace {

void check_tiny(const Tokenizer& tokenizer, const std::string& folder) {
    const auto lines = jsonl("tokenizer/" + folder + "/golden.jsonl");
    REQUIRE(lines.size() == 191);
    for (const auto& line : lines) {
        CAPTURE(line["name"].get<std::string>());
        const Ids ids = tokenizer.encode(line["text"].get<std::string>(), SpecialText::parse);
        CHECK(ids == line["ids"].get<Ids>());
        CHECK(to_valid_utf8(tokenizer.decode(ids, false)) == line["decoded"].get<std::string>());
        REQUIRE(tokenizer.bos().has_value());
        Ids with_bos = {*tokenizer.bos()};
        with_bos.insert(with_bos.end(), ids.begin(), ids.end());
        CHECK(with_bos == line["ids_with_bos"].get<Ids>());
        CHECK(tokenizer.adds_bos());
        std::string pieces;
        for (const TokenId id : ids) pieces += tokenizer.piece(id, false);
        CHECK(pieces == tokenizer.decode(ids, false));
    }
}

}  // namespace

TEST_CASE("byte-level BPE from tokenizer.json") {
    const auto tokenizer = load_folder(testdata("tokenizer/bytebpe512"));
    CHECK(tokenizer->vocab_size() == 512);
    check_tiny(*tokenizer, "bytebpe512");
    CHECK(tokenizer->eos() == Ids{2, 4});  // <|eos|> is declared, <|im_end|> is known
}

TEST_CASE("SentencePiece-style BPE with byte fallback from tokenizer.json") {
    const auto tokenizer = load_folder(testdata("tokenizer/spm512"));
    CHECK(tokenizer->vocab_size() == 512);
    check_tiny(*tokenizer, "spm512");
    CHECK(tokenizer->eos() == Ids{2, 5});
}

TEST_CASE("byte-level BPE from GGUF is the same tokenizer as its tokenizer.json") {
    const auto folder = load_folder(testdata("tokenizer/bytebpe512"));
    for (const char* name : {"llama-f32", "llama-q8_0", "llama3_rope-f16"}) {
        CAPTURE(name);
        const auto gguf = load_gguf(testdata(std::string("golden/tiny/gguf/") + name + ".gguf"));
        check_tiny(*gguf, "bytebpe512");
        CHECK(to_hex(gguf->digest()) == to_hex(folder->digest()));
        CHECK(gguf->eos() == folder->eos());
    }
    const auto model_folder = load_folder(testdata("golden/tiny/llama/f32"));
    CHECK(to_hex(model_folder->digest()) == to_hex(folder->digest()));
    CHECK(to_hex(load_folder(testdata("tokenizer/spm512"))->digest()) != to_hex(folder->digest()));
}

TEST_CASE("invalid UTF-8 is encoded as U+FFFD") {
    for (const char* folder : {"bytebpe512", "spm512"}) {
        const auto tokenizer = load_folder(testdata(std::string("tokenizer/") + folder));
        for (const char* bytes : {"abc\x80"
                                  "def",
                                  "\xE4\xBD", "\xED\xA0\x80\xED\xB0\x80", "ok \xE5\xA5 end\xFF"})
            CHECK(tokenizer->encode(bytes, SpecialText::plain) ==
                  tokenizer->encode(to_valid_utf8(bytes), SpecialText::plain));
    }
}
