#include "io/safetensors.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "gguf_bytes.h"
#include "support/golden.h"
#include "support/temp_dir.h"

using namespace hetero;
using kernels::DType;
using test::raw;

namespace {

std::string file_bytes(std::string_view header, std::string_view data) {
    return raw<std::uint64_t>(header.size()) + std::string(header) + std::string(data);
}

Result<std::shared_ptr<const io::TensorSource>> open_bytes(const std::string& bytes) {
    const test::TempDir folder;
    return io::open_safetensors(folder.write("x.safetensors", bytes));
}

void check_refused(const Result<std::shared_ptr<const io::TensorSource>>& opened,
                   std::initializer_list<std::string_view> parts) {
    REQUIRE_FALSE(opened.has_value());
    CHECK(opened.error().code == Errc::bad_input);
    CHECK(opened.error().message.find('\n') == std::string::npos);
    for (const std::string_view part : parts)
        CHECK_MESSAGE(opened.error().message.find(part) != std::string::npos, part, " in: ", opened.error().message);
}

void check_header_refused(std::string_view header, std::string_view data,
                          std::initializer_list<std::string_view> parts) {
    const auto opened = open_bytes(file_bytes(header, data));
    CHECK_MESSAGE(!opened.has_value(), header);
    check_refused(opened, parts);
}

std::string text_of(const io::TensorView* view) {
    REQUIRE(view != nullptr);
    return {reinterpret_cast<const char*>(view->bytes.data()), view->bytes.size()};
}

}  // namespace

TEST_CASE("a model's file is read as another reader reads it") {
    const test::Golden golden("golden/tiny/llama3_rope/bf16/model.safetensors");
    const std::string path = test::testdata("golden/tiny/llama3_rope/bf16/model.safetensors");
    const auto opened = io::open_safetensors(path);
    REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
    const io::TensorSource& source = **opened;
    REQUIRE(source.names() == golden.names());  // both sorted
    REQUIRE(source.names().size() > 10);
    for (const std::string& name : source.names()) {
        const io::TensorView* view = source.find(name);
        REQUIRE_MESSAGE(view != nullptr, source.why(name));
        CHECK(view->dtype == DType::bf16);
        CHECK(view->file == path);
        const auto shape = golden.shape(name);
        CHECK(view->shape == std::vector<std::uint64_t>(shape.begin(), shape.end()));
        const auto bytes = golden.get<char>(name);
        CHECK(text_of(view) == std::string(bytes.begin(), bytes.end()));
    }
}

TEST_CASE("types, shapes and metadata") {
    const std::string header =
        R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F16","shape":[2,1],"data_offsets":[4,8]},)"
        R"("a":{"dtype":"I32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"U8","shape":[3,0],"data_offsets":[8,8]},)"
        R"("w":{"data_offsets":[8,16],"shape":[1],"dtype":"F64"},"z":{"dtype":"F4","shape":[4],"data_offsets":[16,18]},)"
        R"("new":{"dtype":"Q77","shape":[9],"data_offsets":[18,19]},"none":{"dtype":"","shape":[4],"data_offsets":[19,20]}}  )";
    const auto opened = open_bytes(file_bytes(header, "abcdefghijklmnopqrst"));
    REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
    const io::TensorSource& source = **opened;
    CHECK(source.names() == std::vector<std::string>{"a", "b", "e", "new", "none", "w", "z"});
    CHECK(source.find("a")->dtype == DType::i32);
    CHECK(source.find("a")->shape.empty());
    CHECK(text_of(source.find("a")) == "abcd");
    CHECK(source.find("b")->dtype == DType::f16);
    CHECK(source.find("b")->shape == std::vector<std::uint64_t>{2, 1});
    CHECK(text_of(source.find("b")) == "efgh");
    CHECK(source.find("e")->bytes.empty());
    CHECK(source.find("e")->shape == std::vector<std::uint64_t>{3, 0});
    struct Case {
        const char* name;
        const char* type;
    };
    for (const Case& c : {Case{"w", "F64"}, {"z", "F4"}, {"new", "Q77"}}) {
        CHECK(source.find(c.name) == nullptr);
        CHECK_MESSAGE(source.why(c.name).find(std::string("'") + c.name) != std::string::npos, source.why(c.name));
        CHECK_MESSAGE(source.why(c.name).find(std::string("stored as ") + c.type) != std::string::npos,
                      source.why(c.name));
    }
    CHECK(source.find("none") == nullptr);  // its type is the empty text
    CHECK_FALSE(source.why("none").empty());
    CHECK(source.find("metadata") == nullptr);
    CHECK(source.why("metadata").find("no tensor 'metadata'") != std::string::npos);
    CHECK(source.why("a").empty());
}

TEST_CASE("elements are aligned whatever the length of the header") {
    for (std::size_t padding = 0; padding < 8; ++padding) {
        const std::string header =
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1],"data_offsets":[8,10]}})" +
            std::string(padding, ' ');
        const auto opened = open_bytes(file_bytes(header, "01234567xy"));
        REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
        CHECK(reinterpret_cast<std::uintptr_t>((*opened)->find("a")->bytes.data()) % 4 == 0);
        CHECK(reinterpret_cast<std::uintptr_t>((*opened)->find("b")->bytes.data()) % 2 == 0);
        CHECK(text_of((*opened)->find("a")) == "01234567");
        CHECK(text_of((*opened)->find("b")) == "xy");
    }
}

TEST_CASE("header lengths that lie") {
    check_refused(open_bytes(raw<std::uint64_t>(1ULL << 63) + "{}"), {"9223372036854775808", "100000000"});
    check_refused(open_bytes(raw<std::uint64_t>(0xFFFFFFFFFFFFFFFCULL) + "{}"), {"18446744073709551612", "100000000"});
    check_refused(open_bytes(raw<std::uint64_t>(100'000'001) + "{}"), {"100000001", "100000000"});
    check_refused(open_bytes(raw<std::uint64_t>(100) + "{}"), {"100", "only 2 follow"});
    check_refused(open_bytes(raw<std::uint64_t>(3) + "{}"), {"only 2 follow"});
    check_refused(open_bytes(raw<std::uint64_t>(0)), {"too short", "8 bytes"});
    check_refused(open_bytes(raw<std::uint64_t>(0) + "{}"), {"does not start with '{'"});
    check_refused(open_bytes(raw<std::uint64_t>(1) + "{}"), {"not valid JSON"});
    check_refused(open_bytes(""), {"too short", "0 bytes"});
    check_refused(open_bytes("abc"), {"too short", "3 bytes"});
    CHECK(open_bytes(raw<std::uint64_t>(2) + "{}").has_value());
}

TEST_CASE("headers that are no table of tensors") {
    for (const char* header : {"[]",
                               "null",
                               "{",
                               "{}x",
                               "{}{}",
                               R"({"a":1})",
                               R"({"a":null})",
                               R"({"a":[]})",
                               R"({"a":{}})",
                               R"({"a":{"dtype":"F32"}})",
                               R"({"a":{"dtype":"F32","shape":[1]}})",
                               R"({"a":{"dtype":1,"shape":[1],"data_offsets":[0,4]}})",
                               R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})",
                               R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})",
                               R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
                               R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})",
                               R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})",
                               R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})",
                               R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})",
                               R"({"a":{"dtype":"F32","shape":[1],"data_offsets":{}}})",
                               R"({"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}})",
                               R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})",
                               R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                               R"({"__metadata__":{"a":1}})",
                               R"({"__metadata__":"x"})",
                               R"({"__metadata__":{"a":{}}})",
                               "{\"\xFF\":{}}",
                               "{\"a\":\"\0\"}"}) {
        check_header_refused(header, "data", {"x.safetensors"});
    }
    check_header_refused(" {}", "", {"does not start with '{'"});
    check_header_refused(
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
        "data", {"'a' is there twice"});
    check_header_refused(R"({"a":{"dtype":"F32","shape":[1]}})", "data", {"'a' lacks data_offsets"});
    check_header_refused(R"({"a\n\u001b[31m":{}})", "data",
                         {"'a?"
                          "?[31m' lacks dtype"});
    // Deeper than any call stack.
    check_header_refused(R"({"a":)" + std::string(1'000'000, '['), "data", {"x.safetensors"});
    check_header_refused(R"({"__metadata__":)" + std::string(1'000'000, '{'), "data", {"x.safetensors"});
    std::string dims = "1";
    for (int i = 0; i < 1000; ++i) dims += ",1";
    check_header_refused(R"({"a":{"dtype":"F32","shape":[)" + dims + R"(],"data_offsets":[0,4]}})", "data",
                         {"'a'", "dimensions"});
}

TEST_CASE("ranges that lie") {
    auto tensor = [](std::string_view name, std::string_view dtype, std::string_view shape, std::string_view offsets) {
        return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype, shape, offsets);
    };
    check_header_refused("{" + tensor("a", "F32", "2", "0,8") + "}", "data", {"too short", "4 bytes", "'a'", "0 to 8"});
    check_header_refused("{" + tensor("a", "F32", "1", "4,8") + "}", "datadata", {"'a' begins at 4", "no tensor"});
    check_header_refused("{" + tensor("a", "F32", "1", "4,0") + "}", "data", {"'a' ends at 0, before it begins at 4"});
    check_header_refused("{" + tensor("a", "F32", "1", "0,4") + "}", "dataX", {"5 bytes of data", "end at 4"});
    check_header_refused("{}", "X", {"1 bytes of data"});
    check_header_refused("{" + tensor("a", "F32", "1", "0,4") + "," + tensor("b", "F32", "1", "0,4") + "}", "data",
                         {"'b' begins at 0", "overlap"});
    check_header_refused("{" + tensor("a", "F32", "1", "0,4") + "," + tensor("b", "F32", "1", "2,6") + "}", "datada",
                         {"'b' begins at 2", "overlap"});
    check_header_refused("{" + tensor("a", "F32", "1", "0,4") + "," + tensor("b", "F32", "1", "8,12") + "}",
                         "datadatadata", {"'b' begins at 8", "no tensor"});
    check_header_refused("{" + tensor("a", "F32", "2", "0,4") + "}", "data",
                         {"'a'", "F32", "[2]", "64 bits", "4 bytes"});
    check_header_refused("{" + tensor("a", "F4", "3", "0,2") + "}", "da", {"'a'", "12 bits"});
    check_header_refused("{" + tensor("a", "F32", "4294967296,4294967296", "0,0") + "}", "", {"'a'", "elements"});
    check_header_refused("{" + tensor("a", "F32", "0,4294967296,4294967296", "0,0") + "}", "", {"'a'", "elements"});
    check_header_refused("{" + tensor("a", "F32", "576460752303423488", "0,0") + "}", "",
                         {"'a'"});  // its bits wrap to 0
    check_header_refused("{" + tensor("a", "F32", "1", "0,18446744073709551615") + "}", "data", {"too short", "'a'"});
    check_header_refused("{" + tensor("a", "F32", "1", "18446744073709551612,18446744073709551615") + "}", "data",
                         {"'a'"});
}

TEST_CASE("a file cut short at any byte is refused") {
    const std::string whole = file_bytes(
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
        "datadata");
    REQUIRE(open_bytes(whole).has_value());
    for (std::size_t length = 0; length < whole.size(); ++length)
        REQUIRE_FALSE(open_bytes(whole.substr(0, length)).has_value());
}

TEST_CASE("what is no file") {
    const test::TempDir folder;
    check_refused(io::open_safetensors(folder.path()), {folder.path(), "is a directory"});
    check_refused(io::open_safetensors(folder / "none"), {"none", "No such file"});
    check_refused(io::open_safetensors_folder(folder.path()), {folder.path(), "model.safetensors"});
    check_refused(io::open_safetensors_folder(folder / "none"), {"none"});
}

TEST_CASE("a folder of one file, and of shards") {
    const auto single = io::open_safetensors_folder(test::testdata("golden/tiny/llama/bf16"));
    REQUIRE_MESSAGE(single.has_value(), single.error().message);
    const auto sharded = io::open_safetensors_folder(test::testdata("golden/tiny/llama/f32"));
    REQUIRE_MESSAGE(sharded.has_value(), sharded.error().message);
    CHECK((*single)->names() == (*sharded)->names());
    std::size_t shards = 0;
    for (const char* file :
         {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"}) {
        const test::Golden golden(std::string("golden/tiny/llama/f32/") + file);
        ++shards;
        for (const std::string& name : golden.names()) {
            const io::TensorView* view = (*sharded)->find(name);
            REQUIRE_MESSAGE(view != nullptr, (*sharded)->why(name));
            CHECK(view->file == test::testdata(std::string("golden/tiny/llama/f32/") + file));
            const auto bytes = golden.get<char>(name);
            CHECK(text_of(view) == std::string(bytes.begin(), bytes.end()));
        }
    }
    CHECK(shards == 3);
}

TEST_CASE("shards and indexes that are not as they should be") {
    const test::TempDir folder;
    const std::string first = "model-00001-of-00002.safetensors", second = "model-00002-of-00002.safetensors";
    auto holds = [](std::string_view name) {
        return file_bytes(fmt::format(R"({{"{}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}})", name), "x");
    };
    auto index = [&](std::string_view text) { folder.write("model.safetensors.index.json", text); };
    const std::string good = fmt::format(
        R"({{"metadata":{{"total_size":2,"x":[1,{{"weight_map":{{"q":"w"}}}}]}},"weight_map":{{"a":"{}","b":"{}"}}}})",
        first, second);
    index(good);
    folder.write(first, holds("a"));

    SUBCASE("the second file never came") {
        check_refused(io::open_safetensors_folder(folder.path()), {folder / second, "missing", "'b'", "index.json"});
    }
    SUBCASE("the second file does not hold the tensor") {
        folder.write(second, holds("c"));
        check_refused(io::open_safetensors_folder(folder.path()), {folder / second, "'b'"});
    }
    SUBCASE("the second file is cut short") {
        folder.write(second, holds("b").substr(0, 30));
        check_refused(io::open_safetensors_folder(folder.path()), {folder / second});
    }
    SUBCASE("the second file is a folder") {
        std::filesystem::create_directory(folder / second);
        check_refused(io::open_safetensors_folder(folder.path()), {folder / second, "is a directory"});
    }
    SUBCASE("all is well, and only tensors of the index count") {
        folder.write(
            second,
            file_bytes(
                R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
                R"("c":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                "bac"));
        const auto opened = io::open_safetensors_folder(folder.path());
        REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
        CHECK((*opened)->names() == std::vector<std::string>{"a", "b"});
        CHECK(text_of((*opened)->find("a")) == "x");
        CHECK(text_of((*opened)->find("b")) == "b");
    }
    SUBCASE("file names that lead out of the folder") {
        for (const char* name : {"../x.safetensors", "/etc/passwd", "sub/x", "..", ".", "", "x\\u0000y", "x\\ny"}) {
            index(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name));
            check_refused(io::open_safetensors_folder(folder.path()), {"index.json", "'a'", "plain name"});
        }
    }
    SUBCASE("indexes that are none") {
        for (const char* text :
             {"", "{}", "[]", "3", R"({"weight_map":{}})", R"({"weight_map":[]})", R"({"weight_map":null})",
              R"({"weight_map":{"a":3}})", R"({"weight_map":{"a":{}}})", R"({"weight_map":{"a":["x"]}})",
              R"({"metadata":{"weight_map":{"a":"x"}}})", R"({"weight_map":{"a":"x","a":"x"}})",
              R"({"weight_map":{"a":"x"},"weight_map":{"b":"x"}})", R"({"weight_map":{"a":"x"}} x)",
              R"({"weight_map":{"a":"x")"}) {
            index(text);
            CHECK_MESSAGE(!io::open_safetensors_folder(folder.path()).has_value(), text);
            check_refused(io::open_safetensors_folder(folder.path()), {"model.safetensors.index.json"});
        }
    }
}
