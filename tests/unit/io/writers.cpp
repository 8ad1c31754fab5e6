// What the writers write, the readers read; and a folder is there whole or not at all.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "io/atomic_folder.h"
#include "io/gguf_writer.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "support/golden.h"
#include "support/results.h"
#include "support/temp_dir.h"

using namespace hetero;
using namespace hetero::io;
using kernels::DType;
using test::must;

namespace {
// Called before a rename with flags; what it returns, if not 0, is the error of it.
std::function<int(unsigned flags)> before_rename;
}  // namespace

// Stands in for the C library's, to be a file system without such renames, or another program that is quicker.
extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
    if (const int error = before_rename ? before_rename(flags) : 0; error != 0) {
        errno = error;
        return -1;
    }
    return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

namespace {

std::vector<std::byte> counted(std::size_t n, unsigned start) {
    std::vector<std::byte> bytes(n);
    for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>((start + i * 7) & 0x3f);
    return bytes;
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

struct Written {
    std::vector<TensorSpec> specs;
    std::vector<std::vector<std::byte>> data;
    void add(std::string name, DType dtype, std::vector<std::uint64_t> shape) {
        specs.push_back({std::move(name), dtype, std::move(shape)});
        data.push_back(counted(must(specs.back().bytes()), static_cast<unsigned>(specs.size())));
    }
    // The first tensor in two pieces.
    void write(TensorWriter& writer) const {
        for (std::size_t i = 0; i < data.size(); ++i) {
            const std::span<const std::byte> all(data[i]);
            const std::size_t first = i == 0 ? all.size() / 3 : all.size();
            must(writer.write(all.first(first)));
            if (first < all.size()) must(writer.write(all.subspan(first)));
        }
        must(writer.finish());
    }
    void check(const TensorSource& source) const {
        CHECK(source.names().size() == specs.size());
        for (std::size_t i = 0; i < specs.size(); ++i) {
            CAPTURE(specs[i].name);
            const TensorView* view = source.find(specs[i].name);
            REQUIRE(view != nullptr);
            CHECK(view->dtype == specs[i].dtype);
            CHECK(view->shape == specs[i].shape);
            CHECK(same(view->bytes, data[i]));
        }
    }
};

}  // namespace

TEST_CASE("a GGUF keeps every type of metadata, byte for byte, and its tensors") {
    const auto types = must(GgufFile::open(test::testdata("golden/gguf/types.gguf")));
    GgufHeader header;
    for (const GgufRawKey& key : types->raw_metadata()) header.add(key);
    Written written;
    written.add("odd", DType::f32, {3});
    written.add("matrix", DType::q8_0, {2, 3, 64});
    written.add("half", DType::f16, {5, 7});
    written.add("k", DType::q4_k, {1, 256});
    written.add("i8", DType::i8, {3, 5});
    written.add("empty", DType::f32, {0, 4});
    written.add("last", DType::bf16, {1});
    const test::TempDir folder;
    const std::string path = folder / "out.gguf";
    {
        auto file = must(AtomicFile::create(path, Overwrite::refuse));
        const auto writer = must(GgufWriter::begin(file, header, written.specs, types->alignment_bytes()));
        written.write(*writer);
        must(file.publish());
    }
    const auto read = must(GgufFile::open(path));
    REQUIRE(read->raw_metadata().size() == types->raw_metadata().size());
    for (std::size_t i = 0; i < read->raw_metadata().size(); ++i) {
        CHECK(read->raw_metadata()[i].key == types->raw_metadata()[i].key);
        CHECK(same(read->raw_metadata()[i].value, types->raw_metadata()[i].value));
    }
    written.check(*read);
}

TEST_CASE("metadata values have the types that were given") {
    GgufHeader header;
    header.add("u32", std::uint32_t{4000000000});
    header.add("i32", std::int32_t{-5});
    header.add("u64", std::uint64_t{1} << 63);
    header.add("i64", std::int64_t{-1} << 62);
    header.add("f32", 1.5F);
    header.add("f64", 0.1);
    header.add("yes", true);
    header.add("text", std::string("h\xC3\xA9llo"));
    header.add("u32s", std::vector<std::uint32_t>{1, 4000000000});
    header.add("i32s", std::vector<std::int32_t>{-1, 2});
    header.add("f32s", std::vector<float>{0.5F, -1.25F});
    header.add("flags", std::vector<bool>{true, false, true});
    header.add("texts", std::vector<std::string>{"a", "", "\xE6\x97\xA5"});
    header.add("general.alignment", std::uint32_t{64});
    Written written;
    written.add("t", DType::f32, {1});
    written.add("u", DType::f32, {1});
    const test::TempDir folder;
    {
        auto file = must(AtomicFile::create(folder / "out.gguf", Overwrite::refuse));
        const auto writer = must(GgufWriter::begin(file, header, written.specs, 64));
        written.write(*writer);
        must(writer->replace_text("text", "h\xC3\xA9LLO"));
        CHECK(writer->replace_text("text", "shorter").error().code == Errc::internal);
        CHECK(writer->replace_text("u32", "four").error().code == Errc::internal);
        must(file.publish());
    }
    const auto read = must(GgufFile::open(folder / "out.gguf"));
    CHECK(read->alignment_bytes() == 64);
    CHECK(read->integer("u32").value() == 4000000000LL);
    CHECK(read->integer("i32").value() == -5);
    CHECK(std::get<std::uint64_t>(read->metadata().find("u64")->second) == std::uint64_t{1} << 63);
    CHECK(read->integer("i64").value() == std::int64_t{-1} << 62);
    CHECK(read->number("f32").value() == 1.5);
    CHECK(read->number("f64").value() == 0.1);
    CHECK(read->boolean("yes").value() == true);
    CHECK(read->string("text").value() == "h\xC3\xA9LLO");
    CHECK(*read->integers("u32s").value() == std::vector<std::int64_t>{1, 4000000000});
    CHECK(*read->integers("i32s").value() == std::vector<std::int64_t>{-1, 2});
    CHECK(*read->numbers("f32s").value() == std::vector<double>{0.5, -1.25});
    CHECK(*read->strings("texts").value() == std::vector<std::string_view>{"a", "", "\xE6\x97\xA5"});
    const auto& flags = std::get<GgufArray>(read->metadata().find("flags")->second);
    CHECK(flags.kind == GgufArray::Kind::booleans);
    CHECK(flags.size == 3);
    written.check(*read);
    // The number of each type, as the format has it.
    const std::pair<std::string_view, std::uint32_t> numbers[] = {{"u32", 4},  {"i32", 5},  {"f32", 6},
                                                                  {"yes", 7},  {"text", 8}, {"u32s", 9},
                                                                  {"u64", 10}, {"i64", 11}, {"f64", 12}};
    for (const GgufRawKey& key : read->raw_metadata()) {
        if (key.key == "flags") CHECK(std::memcmp(key.value.data() + key.value.size() - 3, "\1\0\1", 3) == 0);
        for (const auto& [name, number] : numbers) {
            if (key.key == name) CHECK(std::memcmp(key.value.data(), &number, 4) == 0);
        }
    }
}

TEST_CASE("a GGUF that cannot be is refused, and wrong amounts of data are noticed") {
    const test::TempDir folder;
    const auto begin = [&](const GgufHeader& header, const std::vector<TensorSpec>& specs) {
        auto file = must(AtomicFile::create(folder / "out.gguf", Overwrite::refuse));
        auto writer = GgufWriter::begin(file, header, specs);
        return writer ? std::string() : writer.error().message;
    };
    GgufHeader twice;
    twice.add("a", true);
    twice.add("a", false);
    CHECK(begin(twice, {}).find("twice") != std::string::npos);
    CHECK(begin({}, {{"x", DType::f32, {1}}, {"x", DType::f32, {1}}}).find("twice") != std::string::npos);
    CHECK(begin({}, {{"x", DType::f32, {1, 1, 1, 1, 1}}}).find("5 dimensions") != std::string::npos);
    CHECK(begin({}, {{"x", DType::q8_0, {33}}}).find("multiple") != std::string::npos);
    CHECK(begin({}, {{"x", DType::u8, {1}}}).find("no type u8") != std::string::npos);
    CHECK(begin({}, {{"x", DType::f32, {1ULL << 40, 1ULL << 40}}}).find("counted") != std::string::npos);
    auto file = must(AtomicFile::create(folder / "out.gguf", Overwrite::refuse));
    const auto writer = must(GgufWriter::begin(file, {}, {{"x", DType::f32, {2}}}));
    CHECK(writer->finish().error().code == Errc::internal);
    CHECK(writer->write(counted(9, 0)).error().code == Errc::internal);
    must(writer->write(counted(8, 0)));
    CHECK(writer->write(counted(1, 0)).error().code == Errc::internal);
    must(writer->finish());
}

TEST_CASE("safetensors in one file or in shards") {
    Written written;
    written.add("a.weight", DType::i8, {3, 5});
    written.add("a.weight_scale", DType::f32, {3, 1});
    written.add("b", DType::bf16, {7});
    written.add("c", DType::f16, {4, 4});
    written.add("nothing", DType::f32, {0});
    written.add("d", DType::f32, {2, 2});
    for (const std::uint64_t limit : {1000, 40, 1}) {
        CAPTURE(limit);
        const test::TempDir place;
        const std::string path = place / "model";
        {
            auto folder = must(AtomicFolder::create(path, Overwrite::refuse));
            const auto writer = must(SafetensorsWriter::begin(folder, written.specs, limit));
            written.write(*writer);
            must(folder.publish());
        }
        CHECK(place.names() == std::vector<std::string>{"model"});
        struct stat info {};
        CHECK((::stat((path + "/model.safetensors").c_str(), &info) == 0) == (limit == 1000));
        CHECK((::stat((path + "/model.safetensors.index.json").c_str(), &info) == 0) == (limit != 1000));
        written.check(*must(open_safetensors_folder(path)));
    }
    const test::TempDir place;
    auto folder = must(AtomicFolder::create(place / "model", Overwrite::refuse));
    CHECK(SafetensorsWriter::begin(folder, {{"x", DType::q8_0, {32}}}, 1000).error().message.find("no type q8_0") !=
          std::string::npos);
}

TEST_CASE("a folder that is not published leaves nothing") {
    const test::TempDir place;
    {
        auto folder = must(AtomicFolder::create(place / "model", Overwrite::refuse));
        must(folder.write_file("config.json", "{}"));
        auto half = must(folder.create_file("model.safetensors"));
        must(half.write(counted(100, 1)));
        CHECK(place.names().size() == 1);
        CHECK(place.names().front().ends_with(".part"));
    }
    CHECK(place.names().empty());
    {  // what a signal handler does
        auto folder = must(AtomicFolder::create(place / "model", Overwrite::refuse));
        must(folder.write_file("config.json", "{}"));
        auto half = must(folder.create_file("model.safetensors"));
        remove_temporaries_on_signal();
        CHECK(place.names().empty());
    }
    CHECK(place.names().empty());
}

TEST_CASE("a folder that is there is replaced only if asked to, and only if it is a model") {
    const test::TempDir place;
    const std::string path = place / "model";
    const auto publish = [&](Overwrite overwrite, std::string_view text) -> Status {
        HETERO_TRY(AtomicFolder folder, AtomicFolder::create(path + "/", overwrite));
        HETERO_CHECK(folder.write_file("config.json", text));
        return folder.publish();
    };
    must(publish(Overwrite::refuse, "first"));
    CHECK(publish(Overwrite::refuse, "second").error().code == Errc::bad_input);
    CHECK(test::read_file(path + "/config.json") == "first");
    place.write("model/old.safetensors", "old");
    must(publish(Overwrite::replace, "second"));
    CHECK(test::read_file(path + "/config.json") == "second");
    CHECK(place.names() == std::vector<std::string>{"model"});
    struct stat info {};
    CHECK(::stat((path + "/old.safetensors").c_str(), &info) != 0);

    place.write("model/thesis.tex", "years of work");
    CHECK(publish(Overwrite::replace, "third").error().message.find("thesis.tex") != std::string::npos);
    place.write("papers/letter.txt", "dear");
    CHECK(check_output_folder(place / "papers", Overwrite::replace).error().message.find("config.json") !=
          std::string::npos);
    place.write("file", "");
    CHECK(check_output_folder(place / "file", Overwrite::replace).error().code == Errc::bad_input);
    CHECK(check_output_folder(place / "none/there", Overwrite::replace).error().code == Errc::resource);
    CHECK(place.names() == std::vector<std::string>{"file", "model", "papers"});
    CHECK(test::read_file(path + "/config.json") == "second");
}

TEST_CASE("a folder is published on file systems without RENAME_NOREPLACE, and replaces none that has files") {
    const test::TempDir place;
    const std::string path = place / "model";
    for (const int missing : {EINVAL, ENOSYS}) {
        int renames = 0;
        before_rename = [&](unsigned flags) { return ++renames, flags == RENAME_NOREPLACE ? missing : 0; };
        auto folder = must(AtomicFolder::create(path, Overwrite::refuse));
        auto late = must(AtomicFolder::create(path, Overwrite::refuse));
        must(folder.write_file("config.json", "first"));
        must(late.write_file("config.json", "late"));
        must(folder.publish());
        CHECK(renames > 0);
        CHECK(late.publish().error().code == Errc::bad_input);
        auto beaten = must(AtomicFolder::create(place / "beaten", Overwrite::refuse));
        must(beaten.write_file("config.json", "beaten"));
        before_rename = [&](unsigned) { return place.write("beaten/config.json", "quicker"), missing; };
        CHECK(beaten.publish().error().message.find("appeared while") != std::string::npos);
        before_rename = nullptr;
        CHECK(test::read_file(path + "/config.json") == "first");
        CHECK(test::read_file(place / "beaten/config.json") == "quicker");
        CHECK(place.names() == std::vector<std::string>{"beaten", "model"});
        std::filesystem::remove_all(path);
        std::filesystem::remove_all(place / "beaten");
    }
}

TEST_CASE("what cannot be removed of a folder that is replaced stays, and is named") {
    const test::TempDir place;
    place.write("model/config.json", "old");
    std::string left;
    {
        auto folder = must(AtomicFolder::create(place / "model", Overwrite::replace));
        must(folder.write_file("config.json", "new"));
        must(folder.write_file("notes.txt", "new"));
        left = folder.temporary_path();
        before_rename = [&](unsigned flags) {
            if (flags == RENAME_EXCHANGE) place.write("model/notes.txt", "somebody's");
            return 0;
        };
        const Status published = folder.publish();
        before_rename = nullptr;
        REQUIRE_FALSE(published);
        CHECK(published.error().code == Errc::resource);
        CHECK(published.error().message.find(left) != std::string::npos);
    }
    CHECK(test::read_file(place / "model/config.json") == "new");
    CHECK(test::read_file(place / "model/notes.txt") == "new");
    CHECK(test::read_file(left + "/notes.txt") == "somebody's");
}
