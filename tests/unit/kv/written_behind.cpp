// Layers that the sink keeps and writes while the next ones come.
#include <fcntl.h>
#include <unistd.h>

#include "kv/recycled_layers.h"
#include "support/results.h"
#include "unit/kv/states.h"

using namespace hetero;
using namespace hetero::test;

namespace {

kv::State state_of(const std::string& k, const std::string& v) {
    Plan plan;
    plan.n_layers = 5;
    plan.lengths = {11, 1, 7};
    plan.k = spec_scheme(k);
    plan.v = spec_scheme(v);
    plan.tokens_per_chunk = 4;
    return make_state(plan);
}

// Each layer's memory is used for the next one as soon as the sink lets it go.
void write_shared(const kv::State& state, kv::Sink& sink) {
    kv::RecycledLayers recycled;
    REQUIRE(sink.begin(state.header).has_value());
    for (const auto& sequence : state.layers) {
        for (const kv::Layer& layer : sequence) {
            const auto shared = recycled.take();
            *shared = layer;
            REQUIRE(sink.write_shared(shared).has_value());
        }
    }
    REQUIRE(sink.commit().has_value());
}

std::vector<std::byte> read_at(int fd, std::uint64_t offset, std::size_t size) {
    std::vector<std::byte> bytes(size);
    REQUIRE(::pread(fd, bytes.data(), size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size));
    return bytes;
}

}  // namespace

TEST_CASE("a file of shared layers is that of layers written one by one, byte for byte") {
    for (const auto& [k, v] : {std::pair("f16", "bf16"), std::pair("int8:channel:g4", "int4:token:g4:asym")}) {
        const kv::State state = state_of(k, v);
        const TempDir folder;
        save(state, folder / "a.h5");
        const auto sink = must(kv::create_file(folder / "b.h5", io::Overwrite::refuse));
        write_shared(state, *sink);
        CHECK(read_bytes(folder / "a.h5") == read_bytes(folder / "b.h5"));
    }
}

TEST_CASE("a layer is told as written when its bytes are in the file") {
    const kv::State state = state_of("f16", "int8:token:g4");
    const TempDir folder;
    const auto file =
        std::make_shared<io::AtomicFile>(must(io::AtomicFile::create(folder / "a.h5", io::Overwrite::refuse)));
    const int fd = file->fd();
    const std::size_t n_layers = state.header.identity.n_layers;
    std::size_t told = 0;
    const auto written = [&](kv::WrittenLayer layer) {
        const kv::Layer& expected = state.layers[told / n_layers][told % n_layers];
        for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
            for (std::size_t i = 0; i < std::size(kv::part_arrays); ++i) {
                const auto& bytes = (expected.part(id).*kv::part_arrays[i]).bytes;
                CHECK(read_at(fd, layer.offsets[static_cast<std::size_t>(id)][i], bytes.size()) == bytes);
            }
        }
        CHECK(layer.checksums == kv::checksum_layer(state.header, expected));
        ++told;
    };
    const auto sink = must(kv::create_file(file, folder / "a.h5", written));
    write_shared(state, *sink);
    CHECK(told == state.layers.size() * n_layers);
}

TEST_CASE("checksums go with the bytes from file to file, and tell of what became of them on the way") {
    const kv::State state = state_of("int8:token:g4", "f16");
    const TempDir folder;
    save(state, folder / "a.h5");
    const auto copy = [&](const std::string& to, std::uint32_t chunk_tokens, bool shared) {
        const auto source = must(kv::open_file(folder / "a.h5"));
        const auto sink = must(kv::create_file(to, io::Overwrite::refuse));
        kv::Header header = source->header();
        header.tokens_per_chunk = chunk_tokens;
        REQUIRE(sink->begin(header).has_value());
        for (std::size_t n = 0; n < state.layers.size() * state.header.identity.n_layers; ++n) {
            const auto layer = std::make_shared<kv::Layer>(must(source->read_layer()));
            if (n == 7) layer->v.values.bytes[3] ^= std::byte{1};  // as memory that fails does
            REQUIRE((shared ? sink->write_shared(layer) : sink->write_layer(*layer)).has_value());
        }
        REQUIRE(sink->commit().has_value());
        return load(to);
    };
    const auto found = copy(folder / "b.h5", 4, true);
    REQUIRE_FALSE(found.has_value());
    CHECK(has(found.error(), "sequence prompt 1, layer 2, chunk 0"));
    // Who may have changed a layer, or has other chunks, has checksums of its own.
    CHECK(copy(folder / "c.h5", 4, false).has_value());
    CHECK(copy(folder / "d.h5", 8, true).has_value());
}

TEST_CASE("files are read and written at once by several threads") {
    const kv::State state = state_of("f16", "int4:token:g4:asym");
    const TempDir folder;
    save(state, folder / "a.h5");
    for (int i = 0; i < 3; ++i) {
        const auto source = kv::read_ahead(must(kv::open_file(folder / "a.h5")));
        const auto sink = must(kv::create_file(folder / fmt::format("b{}.h5", i), io::Overwrite::refuse));
        REQUIRE(sink->begin(source->header()).has_value());
        kv::RecycledLayers recycled;
        for (std::size_t n = 0; n < state.layers.size() * state.header.identity.n_layers; ++n) {
            const auto layer = recycled.take();
            REQUIRE(source->read_into(*layer).has_value());
            REQUIRE(sink->write_shared(layer).has_value());
        }
        REQUIRE(source->finish().has_value());
        REQUIRE(sink->commit().has_value());
        CHECK(read_bytes(folder / "a.h5") == read_bytes(folder / fmt::format("b{}.h5", i)));
    }
}
