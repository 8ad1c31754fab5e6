// TOML as plain values.
#include "base/toml.h"

#include <doctest/doctest.h>

#include "support/temp_dir.h"

using namespace hetero;
using namespace hetero::test;

TEST_CASE("values of every kind come with their lines") {
    const auto document = parse_toml("a = 1\nb = [true, \"x\", 2.5]\n[c]\nd = {e = -3}\n", "t");
    REQUIRE(document.has_value());
    REQUIRE(document->find("a") != nullptr);
    CHECK(*document->find("a")->as<std::int64_t>() == 1);
    CHECK(document->find("a")->as<double>() == nullptr);
    const auto* list = document->find("b")->as<TomlNode::Array>();
    REQUIRE(list != nullptr);
    REQUIRE(list->size() == 3);
    CHECK(*(*list)[0].as<bool>());
    CHECK(*(*list)[1].as<std::string>() == "x");
    CHECK(*(*list)[2].as<double>() == 2.5);
    CHECK(document->find("b")->line == 2);
    const TomlNode* inner = document->find("c")->find("d");
    REQUIRE(inner != nullptr);
    CHECK(inner->line == 4);
    CHECK(*inner->find("e")->as<std::int64_t>() == -3);
    CHECK(document->find("f") == nullptr);
    CHECK(document->find("a")->find("f") == nullptr);
}

TEST_CASE("what is no document is refused with its line") {
    for (const char* text : {"a = ", "a = 1\na = 2", "a = 1\n[a]", "a = \"", "\xFF", "a = 99999999999999999999"}) {
        const auto document = parse_toml(text, "t.toml");
        REQUIRE_FALSE(document.has_value());
        CHECK(document.error().code == Errc::bad_input);
        CHECK(document.error().message.starts_with("t.toml:"));
        CHECK(document.error().message.find('\n') == std::string::npos);
    }
    CHECK_FALSE(parse_toml("a = 2026-11-30", "t").has_value());
}

TEST_CASE("strings are read back as they were, whatever they hold") {
    const std::string text = "quote \" back \\ line\n tab\t bell\x07 del\x7F \xC3\xA4 #";
    const auto document = parse_toml("a = " + toml_string(text), "t");
    REQUIRE(document.has_value());
    CHECK(*document->find("a")->as<std::string>() == text);
}

TEST_CASE("files are read up to a size") {
    const TempDir folder;
    const std::string path = folder.write("f", "12345");
    CHECK(read_text_file(path, 5, "test").value() == "12345");
    CHECK(read_text_file(path, 4, "test").error().message == path + ": test has over 4 bytes");
    CHECK(read_text_file(folder / "absent", 4, "test").error().code == Errc::bad_input);
    CHECK_FALSE(read_text_file(folder.path(), 4, "test").has_value());
}
