#include "io/gguf.h"

#include <doctest/doctest.h>

#include <cstring>

#include "support/golden.h"
#include "support/temp_dir.h"

using namespace hetero;
using io::GgufFile;
using kernels::DType;

namespace {

std::shared_ptr<const GgufFile> open_types() {
    auto file = GgufFile::open(test::testdata("golden/gguf/types.gguf"));
    REQUIRE_MESSAGE(file.has_value(), file.error().message);
    return *file;
}

std::string_view bytes_text(const io::TensorView& view) {
    return {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()};
}

template <class T>
bool same_bytes(const io::TensorView& view, const std::vector<T>& expected) {
    return view.bytes.size() == expected.size() * sizeof(T) &&
           std::memcmp(view.bytes.data(), expected.data(), view.bytes.size()) == 0;
}

}  // namespace

// The expected values are what the `gguf` Python package (0.19) reads from the file.
TEST_CASE("every metadata type is read with its value") {
    const auto file = open_types();
    CHECK(file->metadata().size() == 20);
    CHECK(file->string("general.architecture").value() == "goldentest");
    CHECK(file->integer("t.u8").value() == 200);
    CHECK(file->integer("t.i8").value() == -100);
    CHECK(file->integer("t.u16").value() == 60000);
    CHECK(file->integer("t.i16").value() == -30000);
    CHECK(file->integer("t.u32").value() == 4000000000LL);
    CHECK(file->integer("t.i32").value() == -2000000000LL);
    CHECK(file->integer("t.i64").value() == -4611686018427387904LL);
    CHECK(std::get<std::uint64_t>(file->metadata().find("t.u64")->second) == 9223372036854775813ULL);
    CHECK(file->number("t.u64").value() == 9223372036854775813.0);
    CHECK(file->number("t.f32").value() == 1.5);
    CHECK(file->number("t.f64").value() == 0.1);
    CHECK(file->number("t.u8").value() == 200.0);
    CHECK(file->boolean("t.true").value() == true);
    CHECK(file->boolean("t.false").value() == false);
    CHECK(file->string("t.str").value() == "h\xC3\xA9llo \xE4\xB8\x96\xE7\x95\x8C\n");
    CHECK(file->string("t.empty").value() == "");
    CHECK(*file->integers("t.arr_i32").value() == std::vector<std::int64_t>{1, -2, 3});
    CHECK(*file->integers("t.arr_u8").value() == std::vector<std::int64_t>{1, 2, 255});
    CHECK(*file->numbers("t.arr_f32").value() == std::vector<double>{0.5, -1.25});
    CHECK(*file->strings("t.arr_str").value() == std::vector<std::string_view>{"a", "", "\xE6\x97\xA5\xE6\x9C\xAC"});
    const auto& array = std::get<io::GgufArray>(file->metadata().find("t.arr_bool")->second);
    CHECK(array.kind == io::GgufArray::Kind::booleans);
    CHECK(array.size == 2);
}

TEST_CASE("a key that is missing is no error, a key of another type is one that names both") {
    const auto file = open_types();
    CHECK(file->integer("none").value() == std::nullopt);
    CHECK(file->number("none").value() == std::nullopt);
    CHECK(file->boolean("none").value() == std::nullopt);
    CHECK(file->string("none").value() == std::nullopt);
    CHECK(file->strings("none").value() == std::nullopt);
    CHECK(file->integers("none").value() == std::nullopt);
    CHECK(file->numbers("none").value() == std::nullopt);

    auto refused = [](const auto& result, std::string_view key, std::string_view found) {
        REQUIRE_FALSE(result.has_value());
        CHECK(result.error().code == Errc::bad_input);
        for (const std::string_view part : {std::string_view("types.gguf"), key, found}) {
            CHECK_MESSAGE(result.error().message.find(part) != std::string::npos, part,
                          " in: ", result.error().message);
        }
    };
    refused(file->integer("t.str"), "'t.str'", "a string");
    refused(file->integer("t.u64"), "'t.u64'", "above 2^63");
    refused(file->integer("t.f32"), "'t.f32'", "a float");
    refused(file->integer("t.true"), "'t.true'", "a boolean");
    refused(file->number("t.true"), "'t.true'", "a boolean");
    refused(file->boolean("t.u8"), "'t.u8'", "an integer");
    refused(file->string("t.arr_str"), "'t.arr_str'", "an array of strings");
    refused(file->strings("t.str"), "'t.str'", "a string");
    refused(file->integers("t.arr_f32"), "'t.arr_f32'", "an array of floats");
    refused(file->numbers("t.arr_i32"), "'t.arr_i32'", "an array of integers");
    refused(file->integers("t.arr_bool"), "'t.arr_bool'", "an array of booleans");
}

TEST_CASE("tensors of every supported type have the shape, type and bytes that were stored") {
    const auto file = open_types();
    const test::Golden golden("golden/gguf/dequant.safetensors");
    struct Case {
        const char* name;
        DType dtype;
    };
    for (const Case& c : {Case{"F16", DType::f16},
                          {"BF16", DType::bf16},
                          {"Q4_0", DType::q4_0},
                          {"Q4_1", DType::q4_1},
                          {"Q5_0", DType::q5_0},
                          {"Q5_1", DType::q5_1},
                          {"Q8_0", DType::q8_0},
                          {"Q2_K", DType::q2_k},
                          {"Q3_K", DType::q3_k},
                          {"Q4_K", DType::q4_k},
                          {"Q5_K", DType::q5_k},
                          {"Q6_K", DType::q6_k},
                          {"IQ4_NL", DType::iq4_nl},
                          {"Q4_0.rand", DType::q4_0},
                          {"Q5_1.rand", DType::q5_1},
                          {"Q6_K.rand", DType::q6_k},
                          {"IQ4_NL.rand", DType::iq4_nl}}) {
        const io::TensorView* view = file->find(c.name);
        REQUIRE_MESSAGE(view != nullptr, c.name);
        CHECK(view->dtype == c.dtype);
        CHECK(view->shape == std::vector<std::uint64_t>{3, 512});
        CHECK(view->file == test::testdata("golden/gguf/types.gguf"));
        CHECK_MESSAGE(same_bytes(*view, golden.get<std::uint8_t>(std::string(c.name) + ".raw")), c.name);
        CHECK(file->why(c.name).empty());
    }
    const auto source = golden.get<float>("src.f32");
    REQUIRE(file->find("plain.f32") != nullptr);
    CHECK(same_bytes(*file->find("plain.f32"), source));
    CHECK(file->find("one_d.f32")->shape == std::vector<std::uint64_t>{512});
    CHECK(file->find("three_d.f32")->shape == std::vector<std::uint64_t>{2, 8, 64});
    CHECK(file->find("three_d.f32")->bytes.size() == 4096);
}

TEST_CASE("types that hetero has no arithmetic for are listed, and refused by name when asked for") {
    const auto file = open_types();
    CHECK(file->names().size() == 35);
    CHECK(std::is_sorted(file->names().begin(), file->names().end()));
    for (const char* type : {"IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4"}) {
        for (const std::string& name : {std::string(type), std::string(type) + ".rand"}) {
            CHECK(std::binary_search(file->names().begin(), file->names().end(), name));
            CHECK(file->find(name) == nullptr);
            for (const std::string& part :
                 {"'" + name + "'", std::string("stored as ") + type, std::string("types.gguf")}) {
                CHECK_MESSAGE(file->why(name).find(part) != std::string::npos, file->why(name));
            }
        }
    }
    CHECK(file->find("no.such.tensor") == nullptr);
    CHECK(file->why("no.such.tensor").find("there is no tensor 'no.such.tensor'") != std::string::npos);
}

TEST_CASE("a model's file: all tensors and the tokenizer's arrays") {
    const auto opened = GgufFile::open(test::testdata("golden/tiny/gguf/llama-q8_0.gguf"));
    REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
    const GgufFile& file = **opened;
    CHECK(file.names().size() == 30);
    CHECK(file.metadata().size() == 23);
    for (const std::string& name : file.names()) REQUIRE_MESSAGE(file.find(name) != nullptr, file.why(name));
    const io::TensorView* embedding = file.find("token_embd.weight");
    CHECK(embedding->dtype == DType::q8_0);
    CHECK(embedding->shape == std::vector<std::uint64_t>{512, 64});
    CHECK(embedding->bytes.size() == 512 * 2 * 34);
    const auto tokens = file.strings("tokenizer.ggml.tokens").value();
    const auto types = file.integers("tokenizer.ggml.token_type").value();
    REQUIRE(tokens.has_value());
    REQUIRE(types.has_value());
    CHECK(tokens->size() == 512);
    CHECK(types->size() == 512);
}

TEST_CASE("the views outlive every copy of the handle but the last") {
    std::shared_ptr<const GgufFile> kept;
    {
        const auto file = open_types();
        kept = file;
    }
    CHECK(bytes_text(*kept->find("one_d.f32")).size() == 2048);
    CHECK(kept->strings("t.arr_str").value()->front() == "a");
}
