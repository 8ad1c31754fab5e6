// GGUF files as downloads, other writers and attackers leave them.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <limits>

#include "gguf_bytes.h"
#include "io/gguf.h"
#include "support/golden.h"
#include "support/temp_dir.h"

using namespace hetero;
using io::GgufFile;
using test::GgufBytes;
using test::raw;

namespace {

constexpr std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint32_t type_f32 = 0, type_q8_0 = 8;

Result<std::shared_ptr<const GgufFile>> open_bytes(const std::string& bytes) {
    const test::TempDir folder;
    return GgufFile::open(folder.write("model.gguf", bytes));
}

void check_opens(const GgufBytes& file) {
    const auto opened = open_bytes(file.bytes());
    CHECK_MESSAGE(opened.has_value(), opened.error().message);
}

// Refused as bad input in one line that names the file and has all `parts`.
void check_refused(const std::string& bytes, std::initializer_list<std::string_view> parts) {
    const auto opened = open_bytes(bytes);
    REQUIRE_FALSE(opened.has_value());
    const Error& error = opened.error();
    CHECK(error.code == Errc::bad_input);
    CHECK(error.message.find('\n') == std::string::npos);
    CHECK(error.message.find("model.gguf") != std::string::npos);
    for (const std::string_view part : parts)
        CHECK_MESSAGE(error.message.find(part) != std::string::npos, part, " in: ", error.message);
}

// Two tensors, `last` at the very end of the file.
GgufBytes small_file() {
    GgufBytes file;
    file.key("general.architecture", GgufBytes::string, GgufBytes::text("llama"));
    file.tensor("first", {4, 2}, type_f32, 0).tensor("last", {32}, type_q8_0, 32);
    file.data = std::string(32 + 34, 'x');
    return file;
}

}  // namespace

TEST_CASE("the sound file that the others are made from") {
    const auto opened = open_bytes(small_file().bytes());
    REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
    CHECK((*opened)->find("first")->shape == std::vector<std::uint64_t>{2, 4});
    CHECK((*opened)->find("last")->bytes.size() == 34);
}

TEST_CASE("a file cut short at any byte is refused, never half read") {
    const std::string whole = small_file().bytes();
    const test::TempDir folder;
    for (std::size_t length = 0; length < whole.size(); ++length) {
        const auto opened = GgufFile::open(folder.write("cut.gguf", whole.substr(0, length)));
        REQUIRE_MESSAGE(!opened.has_value(), length, " of ", whole.size(), " bytes");
        CHECK(opened.error().code == Errc::bad_input);
        CHECK_MESSAGE(opened.error().message.find("too short") != std::string::npos, opened.error().message);
    }
}

TEST_CASE("a file cut short says what it has and what is missing") {
    const std::string whole = small_file().bytes();
    const std::string size = std::to_string(whole.size());
    check_refused("", {"too short", "0 bytes", "24"});
    check_refused(whole.substr(0, 3), {"too short", "3 bytes", "24"});
    check_refused(whole.substr(0, 20), {"too short", "20 bytes", "24"});
    check_refused(whole.substr(0, whole.size() - 1),
                  {"too short", "has " + std::to_string(whole.size() - 1) + " bytes", "needs " + size, "'last'"});
    check_refused(whole.substr(0, whole.size() - 60), {"needs " + size, "'first'"});
    check_refused(whole.substr(0, 60), {"too short", "2 tensors", "60 bytes"});
}

TEST_CASE("a real model's file cut anywhere in its header or data is refused") {
    const std::string whole = test::read_file(test::testdata("golden/tiny/gguf/llama-q8_0.gguf"));
    const test::TempDir folder;
    for (std::size_t length = 1; length < whole.size(); length += 997) {
        REQUIRE_FALSE(GgufFile::open(folder.write("cut.gguf", whole.substr(0, length))).has_value());
    }
    REQUIRE_FALSE(GgufFile::open(folder.write("cut.gguf", whole.substr(0, whole.size() / 2))).has_value());
}

TEST_CASE("what is no GGUF, or another version") {
    check_refused("GGML" + small_file().bytes().substr(4), {"not a GGUF file"});
    check_refused("PK", {"not a GGUF file"});
    check_refused(std::string(100, '\0'), {"not a GGUF file"});
    for (const std::uint32_t version : {0U, 1U, 4U, 0xFFFFFFFFU}) {
        GgufBytes file = small_file();
        file.version = version;
        check_refused(file.bytes(), {"version " + std::to_string(version)});
    }
    GgufBytes swapped = small_file();
    swapped.version = 0x03000000;
    check_refused(swapped.bytes(), {"big-endian"});
    GgufBytes older = small_file();
    older.version = 2;
    check_opens(older);
}

TEST_CASE("counts that the file cannot hold are refused before memory is taken for them") {
    for (const std::uint64_t more : {std::uint64_t{1}, std::uint64_t{1'000'000}, std::uint64_t{1} << 40, huge - 2}) {
        GgufBytes tensors = small_file();
        tensors.announced_tensors_more = more;
        CHECK_FALSE(open_bytes(tensors.bytes()).has_value());
        GgufBytes keys = small_file();
        keys.announced_keys_more = more;
        CHECK_FALSE(open_bytes(keys.bytes()).has_value());
    }
    GgufBytes tensors = small_file();
    tensors.announced_tensors_more = 1'000'000;
    check_refused(tensors.bytes(), {"1000002 tensors"});
    for (const std::uint64_t count :
         {std::uint64_t{3}, std::uint64_t{1} << 32, std::uint64_t{1} << 62, (std::uint64_t{1} << 62) + 1, huge}) {
        for (const std::uint32_t type :
             {GgufBytes::u8, GgufBytes::i32, GgufBytes::f64, GgufBytes::boolean, GgufBytes::string}) {
            GgufBytes array;
            array.key("a", GgufBytes::array, GgufBytes::array_of(type, count, std::string(2, '\1')));
            check_refused(array.header(), {"'a'", std::to_string(count) + " elements"});
        }
    }
    for (const std::uint64_t length : {std::uint64_t{100}, std::uint64_t{1} << 63, huge - 7, huge}) {
        GgufBytes text;
        text.key("a", GgufBytes::string, raw(length) + "abc");
        check_refused(text.header(), {"too short"});
        check_refused("GGUF" + raw(3U) + raw<std::uint64_t>(0) + raw<std::uint64_t>(1) + raw(length) + "abcdefghijk",
                      {"too short"});
    }
}

TEST_CASE("arrays of every integer width are read with their own width, and nothing past them") {
    auto with_types = [](std::uint32_t type, const std::string& elements) {
        GgufBytes file;
        file.key("tokenizer.ggml.token_type", GgufBytes::array, GgufBytes::array_of(type, 3, elements));
        file.key("after", GgufBytes::u32, raw(77U));
        return open_bytes(file.bytes());
    };
    auto check = [&](std::uint32_t type, const std::string& elements, const std::vector<std::int64_t>& expected) {
        const auto file = with_types(type, elements);
        REQUIRE_MESSAGE(file.has_value(), file.error().message);
        CHECK(*(*file)->integers("tokenizer.ggml.token_type").value() == expected);
        CHECK((*file)->integer("after").value() == 77);
    };
    check(GgufBytes::u8, {'\1', '\xFF', '\3'}, {1, 255, 3});
    check(GgufBytes::i8, {'\1', '\xFF', '\3'}, {1, -1, 3});
    check(GgufBytes::u16, raw<std::uint16_t>(1) + raw<std::uint16_t>(65535) + raw<std::uint16_t>(3), {1, 65535, 3});
    check(GgufBytes::i16, raw<std::int16_t>(1) + raw<std::int16_t>(-1) + raw<std::int16_t>(3), {1, -1, 3});
    check(GgufBytes::u32, raw(1U) + raw(0xFFFFFFFFU) + raw(3U), {1, 4294967295, 3});
    check(GgufBytes::i32, raw(1) + raw(-1) + raw(3), {1, -1, 3});
    check(GgufBytes::i64, raw<std::int64_t>(1) + raw<std::int64_t>(-1) + raw<std::int64_t>(3), {1, -1, 3});
    check(GgufBytes::u64, raw<std::uint64_t>(1) + raw<std::uint64_t>(huge / 2) + raw<std::uint64_t>(3),
          {1, std::numeric_limits<std::int64_t>::max(), 3});
    CHECK_FALSE(
        with_types(GgufBytes::u64, raw<std::uint64_t>(1) + raw<std::uint64_t>(huge / 2 + 1) + raw<std::uint64_t>(3))
            .has_value());
}

TEST_CASE("value types: unknown, nested, and booleans that are neither") {
    check_refused(GgufBytes().key("a", 13, raw(0U)).header(), {"'a'", "unknown type 13"});
    check_refused(GgufBytes().key("a", 0xFFFFFFFFU, raw(0U)).header(), {"unknown type 4294967295"});
    check_refused(GgufBytes().key("a", GgufBytes::array, GgufBytes::array_of(13, 1, "x")).header(),
                  {"'a'", "unknown type 13"});
    const std::string inner = GgufBytes::array_of(GgufBytes::u8, 1, "x");
    check_refused(GgufBytes().key("a", GgufBytes::array, GgufBytes::array_of(GgufBytes::array, 1, inner)).header(),
                  {"'a'", "array of arrays"});
    check_refused(GgufBytes().key("a", GgufBytes::boolean, "\2").header(), {"boolean", "is 2"});
    check_refused(
        GgufBytes().key("a", GgufBytes::array, GgufBytes::array_of(GgufBytes::boolean, 2, {"\1\xFF", 2})).header(),
        {"boolean", "is 255"});
    const GgufBytes twice = GgufBytes().key("a", GgufBytes::u8, "x").key("a", GgufBytes::u8, "x");
    check_refused(twice.header(), {"'a' is there twice"});
    check_refused(GgufBytes().key(std::string(65536, 'k'), GgufBytes::u8, "x").header(), {"65536 bytes"});
}

TEST_CASE("text of the file reaches messages only as printable characters") {
    const auto opened = open_bytes(GgufBytes().key("\x1B[31m\n\xFF", GgufBytes::boolean + 100, "").header());
    REQUIRE_FALSE(opened.has_value());
    CHECK_MESSAGE(opened.error().message.find("'?[31m?"
                                              "?'") != std::string::npos,
                  opened.error().message);
}

TEST_CASE("alignment") {
    auto with_alignment = [](std::uint32_t type, const std::string& value, std::size_t alignment) {
        GgufBytes file = small_file();
        file.alignment = alignment;
        return file.key("general.alignment", type, value);
    };
    check_opens(with_alignment(GgufBytes::u32, raw(32U), 32));
    check_opens(with_alignment(GgufBytes::u32, raw(8U), 8));
    // Of another width than the format says, but there is only one way to read it.
    check_opens(with_alignment(GgufBytes::i32, raw(32), 32));
    check_opens(with_alignment(GgufBytes::u64, raw<std::uint64_t>(32), 32));
    for (const std::uint32_t bad : {0U, 1U, 3U, 4U, 24U, 33U, 0x80000001U, 0xFFFFFFFFU}) {
        check_refused(with_alignment(GgufBytes::u32, raw(bad), 32).bytes(),
                      {"general.alignment is " + std::to_string(bad), "power of two"});
    }
    check_refused(with_alignment(GgufBytes::i32, raw(-32), 32).bytes(), {"general.alignment is -32"});
    check_refused(with_alignment(GgufBytes::u64, raw(std::uint64_t{1} << 62), 32).bytes(), {"general.alignment"});
    check_refused(with_alignment(GgufBytes::u64, raw(std::uint64_t{1} << 63), 32).bytes(), {"general.alignment"});
    check_refused(with_alignment(GgufBytes::string, GgufBytes::text("32"), 32).bytes(),
                  {"general.alignment", "a string"});
    check_refused(with_alignment(GgufBytes::f32, raw(32.0F), 32).bytes(), {"general.alignment", "a float"});
    // Offsets are multiples of 32 only, the file says 64.
    check_refused(with_alignment(GgufBytes::u32, raw(64U), 64).bytes(), {"'last'", "offset 32", "alignment 64"});
}

TEST_CASE("tensors that lie") {
    auto one = [](std::initializer_list<std::uint64_t> ne, std::uint32_t type, std::uint64_t offset) {
        GgufBytes file;
        file.tensor("weird", ne, type, offset);
        file.data = std::string(4096, 'x');
        return file.bytes();
    };
    CHECK(open_bytes(one({1024}, type_f32, 0)).has_value());
    check_refused(one({1025}, type_f32, 0), {"'weird'", "does not fit"});
    check_refused(one({1024}, type_f32, 32), {"'weird'", "does not fit"});
    check_refused(one({8}, type_f32, 4), {"'weird'", "offset 4", "alignment 32"});
    check_refused(one({8}, type_f32, huge - 31), {"'weird'"});
    check_refused(one({8}, type_f32, std::uint64_t{1} << 63), {"'weird'"});
    check_refused(one({std::uint64_t{1} << 32, std::uint64_t{1} << 32}, type_f32, 0), {"'weird'", "elements"});
    check_refused(one({huge}, type_f32, 0), {"'weird'", "bytes"});
    check_refused(one({std::uint64_t{1} << 62}, type_f32, 0), {"'weird'", "bytes"});
    check_refused(one({huge, huge, huge, huge}, type_f32, 0), {"'weird'", "elements"});
    check_refused(one({0, huge, huge}, type_f32, 0), {"'weird'", "elements"});
    check_refused(one({huge, 0}, type_f32, 0), {"'weird'", "bytes"});
    check_refused(one({0}, type_q8_0 + 1000, 0), {"'weird'", "type 1008"});
    check_refused(one({33}, type_q8_0, 0), {"'weird'", "33 elements", "32", "Q8_0"});
    check_refused(one({16, 2}, type_q8_0, 0), {"'weird'", "16 elements"});  // blocks do not cross rows
    check_refused(one({1, 1, 1, 1, 1}, type_f32, 0), {"'weird'", "5 dimensions"});
    for (const std::uint32_t dropped : {4U, 5U, 31U, 36U, 1000U, 0xFFFFFFFFU}) {
        check_refused(one({32}, dropped, 0), {"'weird'", "type " + std::to_string(dropped)});
    }
    check_refused(GgufBytes().tensor("", {1}, type_f32, 0).bytes(), {"no name"});
    GgufBytes twice = GgufBytes().tensor("a", {8}, type_f32, 0).tensor("a", {8}, type_f32, 32);
    twice.data = std::string(64, 'x');
    check_refused(twice.bytes(), {"'a' is there twice"});
    GgufBytes overlap = GgufBytes().tensor("b", {8}, type_f32, 32).tensor("a", {16}, type_f32, 0);
    overlap.data = std::string(64, 'x');
    check_refused(overlap.bytes(), {"'a' and 'b' overlap"});
    GgufBytes same = GgufBytes().tensor("a", {8}, type_f32, 0).tensor("b", {8}, type_f32, 0);
    same.data = std::string(64, 'x');
    check_refused(same.bytes(), {"overlap"});
}

TEST_CASE("odd but sound: no tensors, scalars, empty tensors, gaps and bytes after the last tensor") {
    check_opens(GgufBytes().key("a", GgufBytes::u8, "x"));
    GgufBytes file;
    file.tensor("scalar", {}, type_f32, 0).tensor("empty", {0, 4}, type_f32, 0).tensor("later", {1}, type_f32, 96);
    file.data = std::string(200, 'x');
    const auto opened = open_bytes(file.bytes());
    REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
    CHECK((*opened)->find("scalar")->shape.empty());
    CHECK((*opened)->find("scalar")->bytes.size() == 4);
    CHECK((*opened)->find("empty")->shape == std::vector<std::uint64_t>{4, 0});
    CHECK((*opened)->find("empty")->bytes.empty());
    CHECK((*opened)->find("later")->bytes.size() == 4);
}

TEST_CASE("what is no file") {
    const test::TempDir folder;
    auto refused = [](const std::string& path, std::string_view reason) {
        const auto opened = GgufFile::open(path);
        REQUIRE_FALSE(opened.has_value());
        CHECK(opened.error().code == Errc::bad_input);
        CHECK_MESSAGE(opened.error().message.find(path + ": ") == 0, opened.error().message);
        CHECK_MESSAGE(opened.error().message.find(reason) != std::string::npos, opened.error().message);
    };
    refused(folder.path(), "is a directory");
    refused(folder / "none.gguf", "No such file or directory");
    refused(folder.write("file", "x") + "/inside.gguf", "Not a directory");
    refused("/dev/null", "not a regular file");
    const std::string pipe = folder / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    refused(pipe, "not a regular file");  // and does not wait for a writer
}
