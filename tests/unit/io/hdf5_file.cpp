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

TEST_CASE("a group of many links has room for them in one piece") {
    for (const std::size_t links : {500U, 3100U}) {  // the second does not fit in a message
        CAPTURE(links);
        const auto name = [](std::size_t i) { return fmt::format("{:04}", i); };
        auto file = must(File::create(std::make_unique<io::MemoryStore>()));
        {
            Node root = must(file->root());
            Node group = must(root.create_group("group", links));
            for (std::size_t i = 0; i < links; ++i) must(group.create_group(name(i)));
        }
        REQUIRE(file->finish().has_value());
        auto store = file->release_store();
        const auto image = dynamic_cast<io::MemoryStore&>(*store).bytes();
        const std::string_view bytes(reinterpret_cast<const char*>(image.data()), image.size());
        std::size_t continued = 0;
        for (std::size_t at = bytes.find("OCHK"); at != std::string_view::npos; at = bytes.find("OCHK", at + 1))
            ++continued;
        CHECK(continued < links / 20);
        if (links == 500) CHECK(continued == 0);
        const auto back = must(File::open(std::move(store)));
        const Node root = must(back->root());
        const Node group = must(root.open_group("group"));
        CHECK(must(group.link_count()) == links);
        for (const std::size_t i : {std::size_t{0}, links / 2, links - 1}) must(group.open_group(name(i)));
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
