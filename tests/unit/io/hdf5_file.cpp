#include <doctest/doctest.h>

#include <cstring>
#include <numeric>

#include "io/hdf5.h"
#include "support/results.h"

using namespace hetero;
using io::h5::Element;
using io::h5::File;
using io::h5::Node;
using test::must;

namespace {

// Fails from the given write on, as a full disk does, until space is there again (it never is).
class FullStore final : public io::ByteStore {
public:
    explicit FullStore(std::size_t writes_left) : writes_left_(writes_left) {}
    [[nodiscard]] std::uint64_t size() const noexcept override { return store_.size(); }
    Status read_at(std::uint64_t offset, std::span<std::byte> out) override { return store_.read_at(offset, out); }
    Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
        if (writes_left_ == 0) return fail(Errc::resource, "cannot write: No space left on device");
        --writes_left_;
        return store_.write_at(offset, bytes);
    }
    Status resize(std::uint64_t bytes) override { return store_.resize(bytes); }

private:
    io::MemoryStore store_;
    std::size_t writes_left_;
};

Status write_sample(File& file) {
    std::vector<float> values(1000);
    std::iota(values.begin(), values.end(), 0.0F);
    {
        HETERO_TRY(Node root, file.root());
        HETERO_CHECK(root.set("text", std::string("h\u00e9llo")));
        HETERO_CHECK(root.set("empty", std::string()));
        HETERO_CHECK(root.set("integer", std::int64_t{-7}));
        HETERO_CHECK(root.set("number", 0.1));
        HETERO_CHECK(root.set("yes", true));
        HETERO_TRY(Node group, root.create_group("group"));
        HETERO_TRY(Node many, group.create_group("many", 100));
        HETERO_TRY(const Node one, many.create_group("one"));
        HETERO_TRY(Node data, group.create_dataset("data", {Element::f32, {10, 100}}));
        HETERO_CHECK(data.write(std::as_bytes(std::span(values))));
        HETERO_CHECK(root.set("text", std::string("replaced")));
    }
    return file.finish();
}

std::unique_ptr<File> sample() {
    auto file = must(File::create(std::make_unique<io::MemoryStore>()));
    const auto status = write_sample(*file);
    REQUIRE_MESSAGE(status.has_value(), status.error().message);
    return must(File::open(file->release_store()));
}

std::string link_name(std::size_t i) { return fmt::format("{:04}", i); }

// "/group" with so many groups, each with its number.
std::unique_ptr<io::ByteStore> store_of_group(std::size_t links) {
    auto file = must(File::create(std::make_unique<io::MemoryStore>()));
    {
        Node root = must(file->root());
        Node group = must(root.create_group("group", links));
        for (std::size_t i = 0; i < links; ++i)
            must(must(group.create_group(link_name(i))).set("number", static_cast<std::int64_t>(i)));
        must(group.set("late", std::string("after the links")));
    }
    must(file->finish());
    return file->release_store();
}

std::string_view text_of(const io::ByteStore& memory) {
    const auto bytes = dynamic_cast<const io::MemoryStore&>(memory).bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("attributes and arrays come back") {
    const auto file = sample();
    const Node root = must(file->root());
    CHECK(must(root.get<std::string>("text")) == "replaced");
    CHECK(must(root.get<std::string>("empty")) == "");
    CHECK(must(root.get<std::int64_t>("integer")) == -7);
    CHECK(must(root.get<double>("number")) == 0.1);
    CHECK(must(root.get<bool>("yes")) == true);
    CHECK(!must(root.get<std::string>("absent")).has_value());
    const Node data = must(must(root.open_group("group")).open_dataset("data"));
    CHECK(data.path() == "/group/data");
    CHECK(data.extent().shape == std::vector<std::uint64_t>{10, 100});
    std::vector<float> values(1000);
    REQUIRE(data.read(std::as_writable_bytes(std::span(values))).has_value());
    CHECK(values[999] == 999.0F);
    CHECK(!data.read(std::as_writable_bytes(std::span(values).first(10))).has_value());
}

TEST_CASE("an attribute of another type is an error that names it") {
    const auto file = sample();
    const Node root = must(file->root());
    CHECK(root.get<std::int64_t>("text").error().message == "attribute text of /: not a single integer");
    CHECK(root.get<std::string>("integer").error().message == "attribute integer of /: not a single string");
    CHECK(root.get<bool>("integer").error().message.find("bool") != std::string::npos);
    CHECK(root.get<double>("integer").error().message.find("float64") != std::string::npos);
    CHECK(root.open_group("nowhere").error().message == "/nowhere is missing");
    CHECK(root.open_dataset("group").error().message.find("/group") != std::string::npos);
}

// HDF5 looks at every piece of an object header for each link that it adds: pieces times links are its work.
TEST_CASE("the header of a group of many links is in two pieces, however many they are") {
    for (const std::size_t links : {64U, 65U, 500U, 6000U}) {
        CAPTURE(links);
        auto store = store_of_group(links);
        const std::string_view bytes = text_of(*store);
        std::size_t continued = 0;
        for (std::size_t at = bytes.find("OCHK"); at != std::string_view::npos; at = bytes.find("OCHK", at + 1))
            ++continued;
        if (links > 64) CHECK(continued == 1);
        const auto back = must(File::open(std::move(store)));
        const Node root = must(back->root());
        const Node group = must(root.open_group("group"));
        CHECK(must(group.link_count()) == links);
        CHECK(must(group.get<std::string>("late")) == "after the links");
        for (std::size_t i = 0; i < links; ++i) {
            const Node child = must(group.open_group(link_name(i)));
            CHECK(must(child.get<std::int64_t>("number")) == static_cast<std::int64_t>(i));
        }
        CHECK(!group.has(link_name(links)));
        CHECK(test::has(test::error_of(group.open_group(link_name(links))), "is missing"));
    }
}

TEST_CASE("a group of many links, while it is written, finds what it has, and refuses a name twice") {
    auto file = must(File::create(std::make_unique<io::MemoryStore>()));
    {
        Node root = must(file->root());
        Node group = must(root.create_group("group", 100));
        must(must(group.create_group("a")).set("number", std::int64_t{1}));
        must(must(group.create_dataset("data", {Element::u8, {3}})).write(std::vector<std::byte>(3)));
        Node again = must(root.open_group("group"));
        CHECK(must(again.link_count()) == 2);
        CHECK(again.has("data"));
        CHECK(must(must(again.open_group("a")).get<std::int64_t>("number")) == 1);
        CHECK(test::has(test::error_of(again.open_group("b")), "/group/b is missing"));
        CHECK(test::has(test::error_of(again.create_group("a")), "/group/a: cannot be linked"));
        must(again.create_group("c"));
    }
    must(file->finish());
    const auto back = must(File::open(file->release_store()));
    const Node root = must(back->root());
    const Node group = must(root.open_group("group"));
    CHECK(must(group.link_count()) == 3);
    CHECK(must(group.open_dataset("data")).bytes() == 3);
}

TEST_CASE("a flipped byte of many links is found") {
    const auto store = store_of_group(100);
    const std::string_view bytes = text_of(*store);
    const std::size_t begin = bytes.find("OCHK");
    REQUIRE(begin != std::string_view::npos);
    for (std::size_t at = begin; at < bytes.size(); ++at) {
        CAPTURE(at - begin);
        std::string damaged(bytes);
        damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
        const auto all = std::as_bytes(std::span(damaged));
        const auto file = must(File::open(std::make_unique<io::MemoryStore>(std::vector(all.begin(), all.end()))));
        const Node root = must(file->root());
        CHECK(test::has(test::error_of(root.open_group("group")), "/group: damaged"));
    }
}

TEST_CASE("every element type keeps its words") {
    for (const Element element :
         {Element::f16, Element::bf16, Element::f32, Element::i8, Element::u8, Element::i32, Element::u32}) {
        CAPTURE(io::h5::element_name(element));
        // Every 16-bit pattern: NaN payloads, infinities and subnormals of f16 and bf16 are all there.
        std::vector<std::uint16_t> words(65536);
        std::iota(words.begin(), words.end(), std::uint16_t{0});
        const auto bytes = std::as_bytes(std::span(words));
        auto file = must(File::create(std::make_unique<io::MemoryStore>()));
        {
            Node root = must(file->root());
            Node data = must(root.create_dataset("data", {element, {bytes.size() / io::h5::element_bytes(element)}}));
            REQUIRE(data.write(bytes).has_value());
        }
        REQUIRE(file->finish().has_value());
        const auto back = must(File::open(file->release_store()));
        const Node root = must(back->root());
        const Node data = must(root.open_dataset("data"));
        CHECK(data.extent().element == element);
        std::vector<std::byte> found(data.bytes());
        REQUIRE(data.read(found).has_value());
        CHECK(std::memcmp(found.data(), bytes.data(), bytes.size()) == 0);
    }
}

TEST_CASE("a write that fails, whichever it is, is told with the system's reason") {
    std::size_t writes = 0;
    bool succeeded = false;
    while (!succeeded) {
        REQUIRE(writes < 1000);
        CAPTURE(writes);
        auto file = File::create(std::make_unique<FullStore>(writes));
        const Status status = file ? write_sample(**file) : Status(tl::unexpected<Error>(file.error()));
        succeeded = status.has_value();
        if (!succeeded) {
            CHECK(status.error().code == Errc::resource);
            CHECK(status.error().message == "cannot write: No space left on device");
        } else {
            CHECK(File::open((*file)->release_store()).has_value());
        }
        ++writes;
    }
    CHECK(writes > 3);  // so at least two writes have failed in turn
}

TEST_CASE("stores refuse what lies outside") {
    io::MemoryStore store(std::vector<std::byte>(10));
    std::vector<std::byte> out(4);
    CHECK(store.read_at(6, out).has_value());
    CHECK(!store.read_at(7, out).has_value());
    CHECK(!store.read_at(~std::uint64_t{0}, out).has_value());
    CHECK(!store.write_at(~std::uint64_t{0}, out).has_value());
}
