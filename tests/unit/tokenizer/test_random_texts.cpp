// Properties over random texts and damaged files.
#include <random>

#include "fixtures.h"
#include "tokenizer/utf8.h"

using namespace hetero;
using namespace hetero::test;
using Ids = std::vector<TokenId>;

namespace {

std::mt19937 generator(2026);

unsigned below(unsigned n) { return static_cast<unsigned>(generator() % n); }

std::string character(char32_t code) {
    std::string out;
    if (code < 0x80) return std::string(1, static_cast<char>(code));
    if (code < 0x800) {
        out.push_back(static_cast<char>(0xC0 | (code >> 6)));
    } else {
        if (code < 0x10000) {
            out.push_back(static_cast<char>(0xE0 | (code >> 12)));
        } else {
            out.push_back(static_cast<char>(0xF0 | (code >> 18)));
            out.push_back(static_cast<char>(0x80 | ((code >> 12) & 0x3F)));
        }
        out.push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    }
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
    return out;
}

std::string random_unicode() {
    static const char* const pieces[] = {"the ", "He", " ", "  ",         "\n",    "\r\n",   "\t",
                                         "123",  "'s", "!", "<|im_end|>", "<bos>", "<0x41>", "\xE4\xB8\xAD"};
    std::string out;
    const unsigned length = below(60);
    for (unsigned i = 0; i < length; ++i) {
        switch (below(4)) {
            case 0:
                out += pieces[below(std::size(pieces))];
                break;
            case 1:
                out += character(below(0x80));
                break;
            case 2:
                out += character(below(0x800));
                break;
            default: {
                const char32_t code = below(0x110000);
                out += character(code >= 0xD800 && code <= 0xDFFF ? 0x20 : code);
            }
        }
    }
    return out;
}

std::string random_bytes() {
    std::string out;
    const unsigned length = below(60);
    for (unsigned i = 0; i < length; ++i) out.push_back(static_cast<char>(below(256)));
    return out;
}

void check_ids(const Tokenizer& tokenizer, const Ids& ids) {
    for (const TokenId id : ids) CHECK((id >= 0 && static_cast<std::size_t>(id) < tokenizer.vocab_size()));
}

}  // namespace

TEST_CASE("valid text comes back unchanged") {
    for (const char* folder : {"bytebpe512", "spm512"}) {
        CAPTURE(folder);
        const auto tokenizer = load_folder(testdata(std::string("tokenizer/") + folder));
        const bool marks = std::string(folder) == "spm512";
        for (int round = 0; round < 3000; ++round) {
            std::string text = random_unicode();
            REQUIRE(tokenizer::is_valid_utf8(text));
            if (marks && text.find("\xE2\x96\x81") != std::string::npos)
                continue;  // U+2581 itself comes back as a space
            CAPTURE(text);
            for (const auto special : {SpecialText::plain, SpecialText::parse}) {
                const Ids ids = tokenizer->encode(text, special);
                check_ids(*tokenizer, ids);
                CHECK(tokenizer->decode(ids, false) == text);
            }
        }
    }
}

TEST_CASE("any bytes give ids, and the same ones as their repaired text") {
    for (const char* folder : {"bytebpe512", "spm512"}) {
        const auto tokenizer = load_folder(testdata(std::string("tokenizer/") + folder));
        for (int round = 0; round < 3000; ++round) {
            const std::string bytes = random_bytes();
            const Ids ids = tokenizer->encode(bytes, SpecialText::parse);
            check_ids(*tokenizer, ids);
            CHECK(ids == tokenizer->encode(to_valid_utf8(bytes), SpecialText::parse));
            CHECK(tokenizer->decode(ids, false) == to_valid_utf8(bytes));
        }
    }
}

TEST_CASE("any ids decode without harm, and piece by piece to the same bytes") {
    const auto tokenizer = load_folder(testdata("tokenizer/bytebpe512"));
    for (int round = 0; round < 2000; ++round) {
        Ids ids(below(20));
        for (TokenId& id : ids) id = static_cast<TokenId>(below(600)) - 40;
        for (const bool skip : {false, true}) {
            std::string pieces;
            for (const TokenId id : ids) pieces += tokenizer->piece(id, skip);
            CHECK(pieces == tokenizer->decode(ids, skip));
        }
    }
}

TEST_CASE("a long word, and long runs of one character") {
    const std::string inputs[] = {std::string(1'000'000, 'a'), std::string(1'000'000, ' '), std::string(300'000, '\n'),
                                  std::string(300'000, '7'), std::string(300'000, '!')};
    for (const char* folder : {"bytebpe512", "spm512"}) {
        const auto tokenizer = load_folder(testdata(std::string("tokenizer/") + folder));
        for (const std::string& text : inputs)
            CHECK(tokenizer->decode(tokenizer->encode(text, SpecialText::parse), false) == text);
        std::string mixed;
        while (mixed.size() < 500'000) mixed += character(0x61 + below(26));
        CHECK(tokenizer->decode(tokenizer->encode(mixed, SpecialText::parse), false) == mixed);
    }
}

TEST_CASE("a damaged tokenizer.json is refused or works, and nothing else happens") {
    for (const char* folder : {"bytebpe512", "spm512"}) {
        const std::string original = read_file(testdata(std::string("tokenizer/") + folder + "/tokenizer.json"));
        const TempDir scratch;
        int refused = 0;
        for (int round = 0; round < 250; ++round) {
            std::string text = original;
            const unsigned kind = below(3);
            for (unsigned i = 0; i < 1 + below(3); ++i) {
                const std::size_t at = below(static_cast<unsigned>(text.size()));
                if (kind == 0) text[at] = static_cast<char>(below(256));
                if (kind == 1) text.erase(at, 1 + below(20));
                if (kind == 2) text.insert(at, text.substr(below(static_cast<unsigned>(text.size())), below(30)));
            }
            if (below(10) == 0) text.resize(below(static_cast<unsigned>(text.size())));
            scratch.write("tokenizer.json", text);
            const auto tokenizer = Tokenizer::from_folder(scratch.path());
            if (!tokenizer) {
                ++refused;
                CHECK_FALSE(tokenizer.error().message.empty());
                continue;
            }
            check_ids(**tokenizer, (*tokenizer)->encode("The quick 123 \xE4\xBD\xA0 <bos>\n", SpecialText::parse));
        }
        CHECK(refused > 100);
    }
}
