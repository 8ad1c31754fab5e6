#include <map>

#include "fixtures.h"
#include "tokenizer/named_splits.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/utf8.h"

using namespace hetero;
using namespace hetero::test;
using namespace hetero::tokenizer;
using Strings = std::vector<std::string>;
using Ids = std::vector<TokenId>;

namespace {

Strings words_of(const std::vector<WordRule>& rules, const std::string& text, bool at_start = true) {
    WordSplitter splitter(rules);
    Words words;
    splitter.split(text, at_start, words);
    Strings out;
    for (const auto range : words.ranges) out.emplace_back(words.word(range));
    return out;
}

std::vector<WordRule> named(std::string_view name) {
    auto split = find_named_split(name);
    REQUIRE_MESSAGE(split.has_value(), name);
    auto rules = rules_of(**split);
    REQUIRE_MESSAGE(rules.has_value(), (rules ? "" : rules.error().message));
    return *rules;
}

Strings split(std::string_view name, const std::string& text) { return words_of(named(name), text); }

Pattern regular(std::string_view expression) {
    auto pattern = Pattern::regular(expression);
    REQUIRE_MESSAGE(pattern.has_value(), (pattern ? "" : pattern.error().message));
    return *pattern;
}

// Byte-level BPE gives each word its ids, whatever surrounds it. From golden ids alone, without a vocabulary, this
// solves which ids belong to which word, as far as they are determined, and counts contradictions: a pattern that cuts
// where the tokenizer does not has them. (One that cuts too seldom need not: that takes the vocabulary to see.)
struct WordSolver {
    std::map<std::string, Ids> words;
    std::map<TokenId, std::string> texts;  // ids that are a word by themselves
    int contradictions = 0;
    bool changed = false;

    void learn(const std::string& word, Ids ids) {
        if (ids.empty() || words.contains(word)) {
            contradictions += ids.empty();
            return;
        }
        if (ids.size() == 1) {
            const auto [it, fresh] = texts.emplace(ids[0], word);
            contradictions += !fresh && it->second != word;
        }
        words.emplace(word, std::move(ids));
        changed = true;
    }

    void look(const Strings& pieces, const Ids& ids) {
        std::size_t first = 0, last = pieces.size(), begin = 0, end = ids.size();
        for (; first < last && words.contains(pieces[first]); ++first) {
            const Ids& known = words[pieces[first]];
            if (known.size() > end - begin ||
                !std::equal(known.begin(), known.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin))) {
                ++contradictions;
                return;
            }
            begin += known.size();
        }
        for (; last > first && words.contains(pieces[last - 1]); --last) {
            const Ids& known = words[pieces[last - 1]];
            if (known.size() > end - begin ||
                !std::equal(known.begin(), known.end(),
                            ids.begin() + static_cast<std::ptrdiff_t>(end - known.size()))) {
                ++contradictions;
                return;
            }
            end -= known.size();
        }
        const std::size_t left = last - first;
        if (left > end - begin || (left == 0 && end > begin)) {
            ++contradictions;
        } else if (left == 1) {
            learn(pieces[first], Ids(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                                     ids.begin() + static_cast<std::ptrdiff_t>(end)));
        } else if (left == end - begin) {
            for (std::size_t i = 0; i < left; ++i) learn(pieces[first + i], {ids[begin + i]});
        }
    }
};

WordSolver solve(const std::string& file, std::string_view name) {
    const auto rules = named(name);
    const auto entry = *find_named_split(name);
    std::vector<std::pair<Strings, Ids>> lines;
    for (const auto& line : jsonl("tokenizer/" + file)) {
        if (!line.contains("ids_plain")) continue;  // the header
        std::string text = line["text"];
        if (entry->nfc) text = normalize({UnicodeForm::nfc}, text);
        lines.emplace_back(words_of(rules, text), line["ids_plain"].get<Ids>());
    }
    WordSolver solver;
    do {
        solver.changed = false;
        solver.contradictions = 0;
        for (const auto& [pieces, ids] : lines) solver.look(pieces, ids);
    } while (solver.changed);
    return solver;
}

}  // namespace

TEST_CASE("every named pre-tokenizer compiles and loses nothing") {
    Strings texts;
    for (const auto& line : jsonl("tokenizer/smollm2.jsonl"))
        if (line.contains("text")) texts.push_back(line["text"]);
    REQUIRE(named_splits().size() > 20);
    for (const auto& entry : named_splits()) {
        CAPTURE(entry.name);
        const auto rules = named(entry.name);
        for (const auto& text : texts) {
            std::string joined;
            for (const auto& word : words_of(rules, text)) {
                CHECK_FALSE(word.empty());
                CHECK(is_valid_utf8(word));
                joined += word;
            }
            CHECK(joined == text);
        }
    }
}

TEST_CASE("an unknown pre-tokenizer is refused by name") {
    const auto result = find_named_split("klingon-bpe");
    REQUIRE_FALSE(result.has_value());
    CHECK(result.error().code == Errc::bad_input);
    CHECK(result.error().message.find("'klingon-bpe'") != std::string::npos);
    CHECK(result.error().message.find("llama-bpe") != std::string::npos);
}

TEST_CASE("words of the named pre-tokenizers") {
    CHECK(split("gpt-2", "Hello  world, it's 12345!\n\n x") ==
          Strings{"Hello", " ", " world", ",", " it", "'s", " 12345", "!", "\n\n", " x"});
    CHECK(split("smollm", " 12a'LL") == Strings{" ", "1", "2", "a", "'", "LL"});
    CHECK(split("llama-bpe", "it'S 12345\r\n\n  x!\n") ==
          Strings{"it", "'S", " ", "123", "45", "\r\n\n", " ", " x", "!\n"});
    CHECK(split("qwen2", "a1234 \tb") == Strings{"a", "1", "2", "3", "4", " ", "\tb"});
    CHECK(split("tekken", "camelCaseABCd 12") == Strings{"camel", "Case", "ABCd", " ", "1", "2"});
    CHECK(split("gpt-4o", "Don'T 1234") == Strings{"Don'T", " ", "123", "4"});
    CHECK(split("deepseek-v3", "ab12345漢字かな.com") == Strings{"ab", "123", "45", "漢字かな", ".com"});
    CHECK(split("deepseek-llm", "Hi there, 123\n中文") == Strings{"Hi", " there", ",", " ", "123", "\n", "中文"});
    CHECK(split("deepseek-coder", "x = 12\n") == Strings{"x", " = ", "1", "2", "\n"});
    // The letters that its tokenizer.json lists are the cased ones of all scripts.
    CHECK(split("deepseek-llm", "\u1F5F\u1F7D\u1FBE\u1FD3\u1FDB\u2126\u212A") ==
          Strings{"\u1F5F\u1F7D\u1FBE\u1FD3\u1FDB\u2126\u212A"});
    // White_Space has no U+180E since Unicode 6.3; PCRE2's own \s has it.
    CHECK(split("llama-bpe", "!\xE1\xA0\x8E\xE1\xA0\x8E") == Strings{"!\xE1\xA0\x8E\xE1\xA0\x8E"});
}

TEST_CASE("Llama 3: words fit the reference ids, and those of other patterns do not") {
    const WordSolver solver = solve("llama3.jsonl", "llama-bpe");
    CHECK(solver.contradictions == 0);
    CHECK(solver.words.size() >= 250);
    CHECK(solve("llama3.jsonl", "qwen2").contradictions > 0);
    CHECK(solve("llama3.jsonl", "gpt-2").contradictions > 0);
    CHECK(solve("llama3.jsonl", "deepseek-v3").contradictions > 0);
    CHECK(solve("llama3.jsonl", "tekken").contradictions > 0);
}

TEST_CASE("Qwen2.5: words fit the reference ids, and those of other patterns do not") {
    const WordSolver solver = solve("qwen2_5.jsonl", "qwen2");
    CHECK(solver.contradictions == 0);
    CHECK(solver.words.size() >= 220);
    CHECK(solve("qwen2_5.jsonl", "smollm").contradictions > 0);
    CHECK(solve("qwen2_5.jsonl", "tekken").contradictions > 0);
}

TEST_CASE("what a split does with its matches") {
    const auto with = [](SplitBehavior behavior, bool invert, const std::string& text) {
        return words_of({SplitRule{Pattern::exact("-"), behavior, invert}}, text);
    };
    const std::string text = "a-b--c-";
    CHECK(with(SplitBehavior::isolated, false, text) == Strings{"a", "-", "b", "-", "-", "c", "-"});
    CHECK(with(SplitBehavior::removed, false, text) == Strings{"a", "b", "c"});
    CHECK(with(SplitBehavior::merged_with_previous, false, text) == Strings{"a-", "b-", "-", "c-"});
    CHECK(with(SplitBehavior::merged_with_next, false, text) == Strings{"a", "-b", "-", "-c", "-"});
    CHECK(with(SplitBehavior::contiguous, false, text) == Strings{"a", "-", "b", "--", "c", "-"});
    CHECK(with(SplitBehavior::removed, true, text) == Strings{"-", "-", "-", "-"});
    CHECK(with(SplitBehavior::isolated, false, "").empty());
    CHECK(words_of({SplitRule{regular("x*"), SplitBehavior::isolated, false}}, "a\xC3\xA9xxb") ==
          Strings{"a", "\xC3\xA9", "xx", "b"});  // empty matches cut between characters, never inside one
}

TEST_CASE("Metaspace and the prefix space") {
    const std::string mark = "\xE2\x96\x81";
    using Prepend = MetaspaceRule::Prepend;
    CHECK(words_of({MetaspaceRule{mark, Prepend::always, true}}, "a b  c") ==
          Strings{mark + "a", mark + "b", mark, mark + "c"});
    CHECK(words_of({MetaspaceRule{mark, Prepend::always, false}}, " a b") == Strings{mark + "a" + mark + "b"});
    CHECK(words_of({MetaspaceRule{mark, Prepend::never, false}}, "a b") == Strings{"a" + mark + "b"});
    CHECK(words_of({MetaspaceRule{mark, Prepend::first, false}}, "a", true) == Strings{mark + "a"});
    CHECK(words_of({MetaspaceRule{mark, Prepend::first, false}}, "a", false) == Strings{"a"});
    CHECK(words_of({PrefixSpaceRule{}}, "a") == Strings{" a"});
    CHECK(words_of({PrefixSpaceRule{}}, " a") == Strings{" a"});
}

TEST_CASE("regular expressions that would mean something else, or run away, are refused by name") {
    struct Case {
        std::string expression, named;
    };
    const Case cases[] = {{"\\w+", "\\w"},          {"\\bx", "\\b"},
                          {"\\h", "\\h"},           {"[a[b]]", "set inside a set"},
                          {"[a&&b]", "&&"},         {"(?<n>x)", "(?<n"},
                          {"(?m:.)", "(?m:"},       {"(*UTF)x", "(*"},
                          {"x{2}+", "{}+"},         {"[]a]", "unescaped ]"},
                          {"[a", "does not end"},   {"a\\", "backslash"},
                          {"(", "PCRE2"},           {"\\p{Klingon}", "PCRE2"},
                          {"(a+)+$", "backtracks"}, {"(?:\\s|\\s\\s)*x", "backtracks"},
                          {"\\C", "\\C"},           {"\\1", "\\1"}};
    for (const Case& c : cases) {
        CAPTURE(c.expression);
        const auto result = Pattern::regular(c.expression);
        REQUIRE_FALSE(result.has_value());
        CAPTURE(result.error().message);
        CHECK(result.error().code == Errc::bad_input);
        CHECK(result.error().message.find(c.named) != std::string::npos);
    }
    CHECK(words_of({SplitRule{regular("\\u0041|\\x42|[\\s\\d]"), SplitBehavior::removed, false}}, "xAyBz 1q") ==
          Strings{"x", "y", "z", "q"});
    CHECK(words_of({SplitRule{regular("^x"), SplitBehavior::removed, false}}, "x\nxx") ==
          Strings{"\n", "x"});  // ^ is at line starts
}

TEST_CASE("normal forms and replacements") {
    CHECK(normalize({UnicodeForm::nfc}, "cafe\xCC\x81") == "caf\xC3\xA9");
    CHECK(normalize({UnicodeForm::nfd}, "caf\xC3\xA9") == "cafe\xCC\x81");
    CHECK(normalize({UnicodeForm::nfkc}, "\xEF\xAC\x81\xC2\xB2") == "fi2");
    CHECK(normalize({UnicodeForm::nfkd}, "\xEF\xAC\x81\xC3\xA9") == "fie\xCC\x81");
    CHECK(normalize({UnicodeForm::nfc}, "\xEF\xBF\xBF\xEF\xB7\x90") ==
          "\xEF\xBF\xBF\xEF\xB7\x90");  // noncharacters stay
    CHECK(normalize({Prepend{"_"}, Replace{Pattern::exact(" "), "__"}}, "a b") == "_a__b");
    CHECK(normalize({Prepend{"_"}}, "").empty());
    CHECK(normalize({Replace{regular(" {2,}"), " "}}, "a   b c") == "a b c");
}
