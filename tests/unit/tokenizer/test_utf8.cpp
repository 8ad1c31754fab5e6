#include <doctest/doctest.h>

#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

using namespace hetero;

namespace {

const std::string kFffd = "\xEF\xBF\xBD";

// As UTF-8 would spell it, valid or not.
std::string encoded(char32_t code) {
    const auto continuation = [&](int shift) { return static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
    std::string out;
    if (code < 0x80) {
        out.push_back(static_cast<char>(code));
        return out;
    }
    if (code < 0x800) {
        out.push_back(static_cast<char>(0xC0 | (code >> 6)));
    } else if (code < 0x10000) {
        out.push_back(static_cast<char>(0xE0 | (code >> 12)));
        out.push_back(continuation(6));
    } else {
        out.push_back(static_cast<char>(0xF0 | (code >> 18)));
        out.push_back(continuation(12));
        out.push_back(continuation(6));
    }
    out.push_back(continuation(0));
    return out;
}

std::string repeat(const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
}

}  // namespace

TEST_CASE("invalid bytes become U+FFFD by maximal subparts") {
    struct Case {
        std::string in, out;
    };
    const Case cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"\xC3\xA9", "\xC3\xA9"},
        {"a\x80z", "a\xEF\xBF\xBDz"},
        {"\xC3", kFffd},                           // truncated: one
        {"\xE4\xBD", kFffd},                       // two bytes of three: one
        {"\xF0\x9F\x98", kFffd},                   // three bytes of four: one
        {"\xF0\x9F\x98z", kFffd + "z"},            // cut off by a letter: one
        {"\xC0\xAF", repeat(kFffd, 2)},            // overlong: each byte
        {"\xE0\x80\xAF", repeat(kFffd, 3)},        // overlong: E0 needs A0..BF
        {"\xED\xA0\x80", repeat(kFffd, 3)},        // surrogate
        {"\xF4\x90\x80\x80", repeat(kFffd, 4)},    // above U+10FFFF
        {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"},  // U+10FFFF itself
        {"\xFF\xFE", repeat(kFffd, 2)},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", repeat(kFffd, 4) + "A"},  // The Unicode Standard, table 3-11
        {"\xEF\xBF\xBF\xF0\x9F\x98\xB8", "\xEF\xBF\xBF\xF0\x9F\x98\xB8"},  // a noncharacter is valid
    };
    for (const Case& c : cases) {
        CAPTURE(c.in);
        CHECK(to_valid_utf8(c.in) == c.out);
        CHECK(tokenizer::is_valid_utf8(to_valid_utf8(c.in)));
        CHECK(tokenizer::is_valid_utf8(c.in) == (c.in == c.out));
    }
}

TEST_CASE("every code point is decoded, every truncation is seen") {
    int wrong = 0;
    for (char32_t code = 0; code <= 0x110000; ++code) {
        const std::string text = encoded(code);
        const bool valid = code <= 0x10FFFF && !(code >= 0xD800 && code <= 0xDFFF);
        const auto c = tokenizer::decode_utf8(text, 0);
        wrong += valid ? !(c.code == code && c.bytes == text.size() && c.status == tokenizer::Utf8Status::valid)
                       : c.status != tokenizer::Utf8Status::ill_formed;
        if (valid && text.size() > 1) {
            const auto cut = tokenizer::decode_utf8(std::string_view(text).substr(0, text.size() - 1), 0);
            wrong += !(cut.status == tokenizer::Utf8Status::truncated && cut.bytes == text.size() - 1);
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE("a stream shows whole characters only, wherever it is cut") {
    // 1, 2, 3 and 4 bytes, joiners, and a variation selector.
    const std::string text =
        "a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\xB8 \xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x9D\xA4\xEF\xB8\x8F!";
    for (std::size_t first = 0; first <= text.size(); ++first) {
        for (std::size_t second = first; second <= text.size(); ++second) {
            Utf8Stream stream;
            std::string shown;
            for (const std::string& part :
                 {stream.push(text.substr(0, first)), stream.push(text.substr(first, second - first)),
                  stream.push(text.substr(second))}) {
                CHECK(tokenizer::is_valid_utf8(part));
                shown += part;
            }
            CHECK(shown == text);
            CHECK(stream.finish().empty());
        }
    }
    Utf8Stream stream;
    std::string shown;
    for (const char c : text) {
        const std::string part = stream.push(std::string_view(&c, 1));
        CHECK(tokenizer::is_valid_utf8(part));
        shown += part;
    }
    CHECK(shown == text);
}

TEST_CASE("a stream holds back no more than what can still become a character") {
    Utf8Stream stream;
    CHECK(stream.push("x\xF0\x9F\x98") == "x");
    CHECK(stream.push("").empty());
    CHECK(stream.finish() == "\xF0\x9F\x98");
    CHECK(stream.finish().empty());

    CHECK(stream.push("\xE4\xBD") == "");
    CHECK(stream.push("A") == "\xE4\xBD\x41");  // it can never become valid: passed on as it is
    CHECK(stream.push("\x80\x80\x80\x80") == "\x80\x80\x80\x80");
    CHECK(stream.push("\xFF") == "\xFF");
    CHECK(stream.push("\xC0") == "\xC0");
    CHECK(stream.push("\xED\xA0") == "\xED\xA0");  // a surrogate
    CHECK(stream.push("\xED") == "");
    CHECK(stream.push("\x9F\xBF") == "\xED\x9F\xBF");  // the last code point before them
    CHECK(stream.push("\xF4\x90") == "\xF4\x90");
    CHECK(stream.finish().empty());
}

TEST_CASE("whatever bytes come in whatever pieces, all come out, in order") {
    std::uint32_t state = 12345;
    const auto next = [&] { return state = state * 1664525U + 1013904223U, state >> 24; };
    for (int round = 0; round < 2000; ++round) {
        std::string in, out;
        Utf8Stream stream;
        const int pieces = static_cast<int>(next() % 8);
        for (int i = 0; i < pieces; ++i) {
            std::string piece;
            const unsigned length = next() % 6;
            for (unsigned k = 0; k < length; ++k) piece.push_back(static_cast<char>(next()));
            in += piece;
            out += stream.push(piece);
        }
        out += stream.finish();
        CHECK(out == in);
    }
}
