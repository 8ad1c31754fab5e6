#include "fixtures.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/chat/jinja.h"

using namespace hetero;
using namespace hetero::test;
using namespace hetero::tokenizer;
using Messages = std::vector<ChatMessage>;

namespace {

const ChatContext kContext{"<s>", "</s>"};

std::string format(std::string_view name, const Messages& messages, bool prompt) {
    const ChatTemplate* known = chat_template_named(name);
    REQUIRE_MESSAGE(known != nullptr, name);
    const auto text = known->standard()(kContext, messages, prompt);
    REQUIRE_MESSAGE(text.has_value(), (text ? "" : text.error().message));
    return *text;
}

bool refused(std::string_view name, const Messages& messages) {
    const auto text = chat_template_named(name)->standard()(kContext, messages, true);
    return !text.has_value() && text.error().code == Errc::usage;
}

std::string canonical(std::string_view source) {
    const auto text = canonical_jinja(source);
    REQUIRE(text.has_value());
    return *text;
}

const Messages kTalk = {{"user", "A"}, {"assistant", "B"}, {"user", " C "}};

}  // namespace

TEST_CASE("golden conversations") {
    int seen = 0;
    for (const auto& line : jsonl("tokenizer/chat.jsonl")) {
        REQUIRE(line["model"] == "smollm2");
        Messages messages;
        for (const auto& message : line["messages"]) messages.push_back({message["role"], message["content"]});
        CHECK(format("chatml-default-system", messages, line["add_generation_prompt"]) ==
              line["text"].get<std::string>());
        ++seen;
    }
    CHECK(seen == 12);
}

TEST_CASE("a tokenizer's own template is recognised") {
    const auto tokenizer = load_folder(testdata("tokenizer/bytebpe512"));
    const auto text = tokenizer->format_chat(kTalk, true);
    REQUIRE(text.has_value());
    CHECK(*text ==
          "<|bos|><|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\n C <|im_end|>\n"
          "<|im_start|>assistant\n");
    const auto gguf = load_gguf(testdata("golden/tiny/gguf/llama-f32.gguf"));
    const auto same = gguf->format_chat(kTalk, true);
    REQUIRE(same.has_value());
    CHECK(*same == *text);
}

TEST_CASE("no template, and an unknown one, are refused") {
    const auto none = load_folder(testdata("tokenizer/spm512"))->format_chat(kTalk, true);
    REQUIRE_FALSE(none.has_value());
    CHECK(none.error().message.find("no chat template") != std::string::npos);

    const TempDir folder;
    folder.write("tokenizer.json", read_file(testdata("tokenizer/bytebpe512/tokenizer.json")));
    folder.write("chat_template.jinja", "{{ messages[0]['content'] | upper }}");
    const auto unknown = load_folder(folder.path())->format_chat(kTalk, true);
    REQUIRE_FALSE(unknown.has_value());
    CHECK(unknown.error().code == Errc::bad_input);
    for (const char* name : {"chatml", "gemma3", "llama3", "mistral", "qwen2.5"})
        CHECK(unknown.error().message.find(name) != std::string::npos);
}

TEST_CASE("conversations in the published formats") {
    CHECK(format("chatml", {{"system", "S"}, {"user", "A"}}, false) ==
          "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n");
    CHECK(format("qwen2.5", {{"user", "A"}}, true) ==
          "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
          "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n");
    CHECK(format("qwen2.5", {{"system", "S"}, {"user", "A"}, {"tool", "1"}, {"tool", "2"}}, false) ==
          "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</"
          "tool_response>\n"
          "<tool_response>\n2\n</tool_response><|im_end|>\n");
    CHECK(format("llama3", kTalk, true) ==
          "<s><|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
          "\n\nB<|eot_id|>"
          "<|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    const std::string dated = format("llama3.2", {{"system", " S "}, {"user", "A"}}, false);
    const std::string head =
        "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ";
    const std::string tail = "\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>";
    REQUIRE(dated.size() == head.size() + 11 + tail.size());  // 01 Jan 2026
    CHECK(dated.starts_with(head));
    CHECK(dated.ends_with(tail));
    CHECK(format("gemma2", kTalk, true) ==
          "<s><start_of_turn>user\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n<start_of_turn>user\nC<end_of_"
          "turn>\n"
          "<start_of_turn>model\n");
    CHECK(
        format("gemma3", {{"system", " S "}, {"user", "\n A "}, {"assistant", "B"}}, true) ==
        "<s><start_of_turn>user\n S \n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n<start_of_turn>model\n");
    CHECK(format("gemma3", {{"user", "A"}}, false) == "<s><start_of_turn>user\nA<end_of_turn>\n");
    CHECK(format("mistral", kTalk, true) == "<s>[INST] A [/INST]B</s>[INST]  C  [/INST]");
    CHECK(format("phi3.5", {{"system", ""}, {"user", "A"}}, true) == "<|user|>\nA<|end|>\n<|assistant|>\n");
    CHECK(format("phi3.5", {{"system", "S"}, {"user", "A"}}, false) ==
          "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n</s>");
}

TEST_CASE("conversations that a template refuses") {
    CHECK(refused("gemma2", {{"system", "S"}, {"user", "A"}}));
    CHECK(refused("gemma2", {{"assistant", "A"}}));
    CHECK(refused("gemma3", {{"user", "A"}, {"user", "B"}}));
    CHECK(refused("mistral", {{"system", "S"}}));
    CHECK(refused("mistral", {{"user", "A"}, {"tool", "S"}}));
    CHECK(refused("qwen2.5", {}));
    CHECK(refused("llama3.2", {}));
}

TEST_CASE("spellings of one template are one") {
    const std::string text = canonical("{% for message in messages %}{{'<' + message['role'] + '>\\n'}}{% endfor %}");
    CHECK(text == "{%for message in messages%}<{{message['role']}}>\n{%endfor%}");
    CHECK(canonical(
              "{%- for message in messages -%}\n  {{- \"<\" -}}  {{ message.role }}{{ \">\\n\" }}\n{%- endfor %}\n") ==
          text);
    CHECK(canonical("  {% for message in messages %}\n<{{ message . role }}>\n  {# note #}\n{% endfor %}") == text);
    CHECK(canonical("{% for message in messages %} <{{message.role}}>\n{% endfor %}") != text);
    CHECK(canonical("{{ 'a' if x else 'b' + 'c' }}") == "{{'a' if x else 'b'+'c'}}");
    CHECK(canonical("{{ (a + b) | trim + 'c' }}") == "{{(a+b)|trim}}c");
    CHECK(canonical("{{ '{%if x%}' }}") != canonical("{%if x%}"));  // literal text is not a tag
    CHECK(canonical("it's {a} \\n") == "it's \\{a} \\\\n");
    for (const char* broken : {"{{ 'a", "{% if x", "{# note", "{{ 'a\\q' }}", "{{ a", "{{ 'a\\"})
        CHECK_FALSE(canonical_jinja(broken).has_value());
}

TEST_CASE("a changed template is not taken for a known one") {
    const std::string chatml =
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
        "'\\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    REQUIRE(find_chat_formatter(chatml));
    const auto changed = [&](const std::string& what, const std::string& with) {
        std::string text = chatml;
        const auto at = text.find(what);
        REQUIRE(at != std::string::npos);
        return text.replace(at, what.size(), with);
    };
    CHECK_FALSE(find_chat_formatter(changed("message['content']", "message['content'] | trim")));
    CHECK_FALSE(find_chat_formatter(changed("assistant", "bot")));
    CHECK_FALSE(find_chat_formatter(changed("<|im_end|>", "<|im_end|> ")));
    CHECK(find_chat_formatter(changed("message['role']", "message.role")));
    CHECK_FALSE(find_chat_formatter(""));
    CHECK_FALSE(find_chat_formatter(std::string(2'000'000, 'x')));

    const auto custom = find_chat_formatter(
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
        "'<|im_start|>system\nBe brief.<|im_end|>\n' }}"
        "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
    REQUIRE(custom);
    const auto brief = custom({}, Messages{{"user", "A"}}, false);
    REQUIRE(brief.has_value());
    CHECK(*brief == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nA<|im_end|>\n");
}
