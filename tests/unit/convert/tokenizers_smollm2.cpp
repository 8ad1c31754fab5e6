// SmolLM2's own tokenizer, from its GGUF to a folder and back.
#include "tokenizer/export.h"
#include "unit/convert/carry_out.h"
#include "unit/tokenizer/fixtures.h"

using namespace hetero;
using namespace hetero::test;
using Ids = std::vector<TokenId>;

TEST_CASE("the tokenizer of a published GGUF as a folder, and as a GGUF again") {
    const auto original = smollm2();
    if (original == nullptr) return;
    const auto file = must(io::GgufFile::open(model_path()));
    const auto files = must(tokenizer::to_folder(must(tokenizer::parts_from_gguf(*file)), 8192));
    CHECK(files.warnings.empty());
    const TempDir dir;
    dir.write("tokenizer.json", files.tokenizer_json);
    dir.write("tokenizer_config.json", files.tokenizer_config_json);
    const auto folder = load_folder(dir.path());
    const auto words = must(tokenizer::to_gguf(must(tokenizer::parts_from_folder(dir.path())), 49152));
    CHECK(words.warnings.empty());
    GgufBytes out;
    for (const auto& [key, value] : words.metadata) {
        const auto [type, bytes] = gguf_value(value);
        out.key(key, type, bytes);
        if (key == "tokenizer.ggml.pre") CHECK(std::get<std::string>(value) == "smollm");
    }
    const auto gguf = load_gguf(dir.write("tokenizer.gguf", out.bytes()));
    std::size_t lines = 0;
    for (const auto& line : jsonl("tokenizer/smollm2.jsonl")) {
        if (!line.contains("ids")) continue;
        ++lines;
        const std::string text = input_of(line);
        CAPTURE(text);
        for (const auto& tokenizer : {folder, gguf}) {
            CHECK(tokenizer->encode(text, SpecialText::parse) == line["ids"].get<Ids>());
            CHECK(tokenizer->encode(text, SpecialText::plain) == line["ids_plain"].get<Ids>());
        }
    }
    CHECK(lines > 100);
    const std::vector<ChatMessage> chat = {{"user", "Hello"}};
    for (const auto& tokenizer : {folder, gguf}) {
        CHECK(to_hex(tokenizer->digest()) == to_hex(original->digest()));
        CHECK(tokenizer->bos() == original->bos());
        CHECK(tokenizer->adds_bos() == original->adds_bos());
        CHECK(tokenizer->eos() == original->eos());
        CHECK(must(tokenizer->format_chat(chat, true)) == must(original->format_chat(chat, true)));
    }
}
