// The tokenizer of a real model, from its GGUF file.
#include "fixtures.h"
#include "tokenizer/utf8.h"

using namespace hetero;
using namespace hetero::test;
using Ids = std::vector<TokenId>;

TEST_CASE("SmolLM2: every golden line") {
    const auto tokenizer = smollm2();
    if (tokenizer == nullptr) return;
    const auto lines = jsonl("tokenizer/smollm2.jsonl");
    REQUIRE(lines.size() == 192);
    CHECK(tokenizer->vocab_size() == lines[0]["n_vocab"].get<std::size_t>());

    std::string pieces;
    for (std::size_t id = 0; id < tokenizer->vocab_size(); ++id) {
        if (id > 0) pieces.push_back('\0');
        pieces += tokenizer->piece(static_cast<TokenId>(id), false);
    }
    CHECK(to_hex(sha256(pieces)) == lines[0]["sha256_of_all_pieces_joined_by_00"].get<std::string>());

    for (std::size_t i = 1; i < lines.size(); ++i) {
        const auto& line = lines[i];
        CAPTURE(line["name"].get<std::string>());
        const std::string input = input_of(line);
        const Ids ids = tokenizer->encode(input, SpecialText::parse);
        CHECK(ids == line["ids"].get<Ids>());
        CHECK(tokenizer->encode(input, SpecialText::plain) == line["ids_plain"].get<Ids>());
        CHECK(tokenizer->decode(ids, false) == unhex(line["decoded_hex"]));
        CHECK(to_valid_utf8(tokenizer->decode(ids, true)) == line["decoded_skip_special"].get<std::string>());
        CHECK((tokenizer->decode(ids, false) == line["text"].get<std::string>()) == line["roundtrip"].get<bool>());
    }
}

TEST_CASE("SmolLM2: special tokens typed by a user are text unless parsing is asked for") {
    const auto tokenizer = smollm2();
    if (tokenizer == nullptr) return;
    CHECK(tokenizer->encode("<|im_end|>", SpecialText::parse) == Ids{2});
    CHECK(tokenizer->encode("<|im_end|>", SpecialText::plain) == Ids{44, 108, 306, 79, 486, 108, 46});
    const std::string chat = "<|im_start|>user\nHi<|im_end|>\n";
    CHECK(tokenizer->encode(chat, SpecialText::parse) == Ids{1, 4093, 198, 26843, 2, 198});
    CHECK(tokenizer->encode(chat, SpecialText::plain) ==
          Ids{44, 108, 306, 79, 3738, 108, 46, 4093, 198, 26843, 44, 108, 306, 79, 486, 108, 46, 198});
    CHECK(tokenizer->piece(2, false) == "<|im_end|>");
    CHECK(tokenizer->piece(2, true).empty());
    CHECK(tokenizer->decode(Ids{26843, 2}, true) == "Hi");
}

TEST_CASE("SmolLM2: newlines are kept as they are") {
    const auto tokenizer = smollm2();
    if (tokenizer == nullptr) return;
    const auto encode = [&](std::string_view text) { return tokenizer->encode(text, SpecialText::plain); };
    CHECK(encode("\n") == Ids{198});
    CHECK(encode("Hello\n") == Ids{19556, 198});
    CHECK(encode("Hello\r\n") == Ids{19556, 2738});
    CHECK(encode("Hello\r\nWorld") == Ids{19556, 201, 198, 11265});
    CHECK(encode("A: One banana\nB:\n") == Ids{49, 42, 1963, 21285, 198, 50, 42, 198});
    CHECK(tokenizer->decode(encode("a\\nb"), false) == "a\\nb");
    CHECK(encode("The capital of France is") == Ids{504, 3575, 282, 4649, 314});
}

TEST_CASE("SmolLM2: characters that span tokens are streamed whole") {
    const auto tokenizer = smollm2();
    if (tokenizer == nullptr) return;
    const auto stream = [&](const Ids& ids) {
        Utf8Stream out;
        std::string shown;
        for (const TokenId id : ids) {
            const std::string part = out.push(tokenizer->piece(id, true));
            CHECK(tokenizer::is_valid_utf8(part));
            shown += part;
        }
        return std::pair{shown, out.finish()};
    };
    CHECK(stream({10813, 242, 133}) == std::pair<std::string, std::string>{"\xF0\x9F\x98\xB8", ""});
    CHECK(stream({10813, 38887}) == std::pair<std::string, std::string>{"\xF0\x9F\x99\x82", ""});
    CHECK(stream({10813, 235, 118, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117}) ==
          std::pair<std::string, std::string>{
              "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7", ""});
    const auto [shown, held] = stream({10813, 242});
    CHECK(shown.empty());
    CHECK(held == "\xF0\x9F\x98");
}

TEST_CASE("SmolLM2: start and end tokens") {
    const auto tokenizer = smollm2();
    if (tokenizer == nullptr) return;
    CHECK(tokenizer->bos() == std::optional<TokenId>(1));
    CHECK_FALSE(tokenizer->adds_bos());
    CHECK(tokenizer->eos() == Ids{2, 0});  // <|im_end|> is declared, <|endoftext|> is known
    CHECK(tokenizer->piece(-1, false).empty());
    CHECK(tokenizer->piece(49152, false).empty());
    CHECK(tokenizer->decode(Ids{49152, 19556, -7}, false) == "Hello");
}

TEST_CASE("SmolLM2: long prompts") {
    const auto tokenizer = smollm2();
    if (tokenizer == nullptr) return;
    std::string words;
    for (int i = 0; i < 9000; ++i) words += "word ";
    CHECK(tokenizer->encode(words, SpecialText::plain).size() == 9001);
    CHECK(tokenizer->encode(std::string_view(words).substr(0, 8191 * 5), SpecialText::plain).size() == 8192);

    const std::string novel = read_file(testdata("text/austen_30k.txt"));
    std::string long_text;
    while (long_text.size() < 300'000) long_text += novel;
    const Ids ids = tokenizer->encode(long_text, SpecialText::plain);
    CHECK(tokenizer->decode(ids, false) == long_text);
}

TEST_CASE("SmolLM2: conversations in the model's own template") {
    const auto tokenizer = smollm2();
    if (tokenizer == nullptr) return;
    int seen = 0;
    for (const auto& line : jsonl("tokenizer/chat.jsonl")) {
        if (line["model"] != "smollm2") continue;
        std::vector<ChatMessage> messages;
        for (const auto& message : line["messages"]) messages.push_back({message["role"], message["content"]});
        const auto text = tokenizer->format_chat(messages, line["add_generation_prompt"]);
        REQUIRE(text.has_value());
        CHECK(*text == line["text"].get<std::string>());
        CHECK(tokenizer->encode(*text, SpecialText::parse) == line["ids"].get<Ids>());
        ++seen;
    }
    CHECK(seen == 12);
}
