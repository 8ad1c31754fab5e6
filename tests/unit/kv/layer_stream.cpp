// Layers of a file whose values are read piece by piece.
#include <algorithm>
#include <filesystem>
#include <thread>

#include "unit/kv/kinds.h"

using namespace hetero;
using namespace hetero::test;

namespace {

std::unique_ptr<kv::Source> open(const std::string& path) {
    auto source = kv::open_file(path);
    REQUIRE_MESSAGE(source.has_value(), source.error().message);
    return std::move(*source);
}

std::unique_ptr<kv::LayerStream> next_of(kv::Source& source) {
    auto stream = source.read_stream();
    REQUIRE_MESSAGE(stream.has_value(), stream.error().message);
    return std::move(*stream);
}

// The bytes of a part, each chunk by a thread of its own.
std::vector<std::byte> bytes_of(const kv::LayerStream& stream, kv::PartId id) {
    const kv::Tensor& values = stream.layer().part(id).values;
    std::vector<std::byte> bytes(kernels::dtype_bytes(values.dtype, values.elements()));
    const std::size_t chunks = stream.chunks(id);
    std::vector<Status> done(chunks);
    std::vector<std::thread> threads;
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        threads.emplace_back([&, chunk] {
            const auto take = [&](std::uint64_t begin, std::uint64_t end, std::span<const std::byte> rows) -> Status {
                const std::size_t row_bytes = rows.size() / (end - begin);
                std::copy(rows.begin(), rows.end(), bytes.begin() + static_cast<std::ptrdiff_t>(begin * row_bytes));
                return {};
            };
            done[chunk] = stream.read(id, chunk, take);
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& one : done) REQUIRE_MESSAGE(one.has_value(), one.error().message);
    return bytes;
}

void check_streams(const kv::State& state, const std::string& path) {
    const auto ahead = kv::read_ahead(open(path));
    for (const auto& layers : state.layers) {
        for (const kv::Layer& layer : layers) {
            const auto stream = next_of(*ahead);
            REQUIRE(stream != nullptr);
            for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
                CHECK(stream->layer().part(id).values.shape == layer.part(id).values.shape);
                CHECK((bytes_of(*stream, id) == layer.part(id).values.bytes));
            }
        }
    }
    CHECK(ahead->finish().has_value());
}

const auto drop = [](std::uint64_t, std::uint64_t, std::span<const std::byte>) -> Status { return {}; };

}  // namespace

TEST_CASE("streams have the bytes of layers, of every kind") {
    for (auto& [name, plan] : kind_plans()) {
        CAPTURE(name);
        plan.tokens_per_chunk = 4;
        const TempDir folder;
        const kv::State state = make_state(plan);
        save(state, folder / "a.h5");
        check_streams(state, folder / "a.h5");
    }
    Plan plan;  // rows longer than a piece, and pieces of several rows
    plan.n_heads = plan.n_kv_heads = 40;
    plan.head_dim_k = 1024;
    plan.head_dim_v = 4;
    plan.lengths = {70};
    const TempDir folder;
    const kv::State state = make_state(plan);
    save(state, folder / "a.h5");
    check_streams(state, folder / "a.h5");
}

TEST_CASE("what is not values alone comes whole, and streams may follow it") {
    Plan plan;
    plan.n_layers = 3;
    plan.lengths = {9};
    plan.k_of_layer = {spec_scheme("int8:token:g4"), spec_scheme("f16"), spec_scheme("int8:token:g4", 2, 2)};
    plan.v_of_layer = {spec_scheme("f16"), spec_scheme("bf16"), spec_scheme("f16")};
    const TempDir folder;
    const kv::State state = make_state(plan);
    save(state, folder / "a.h5");
    const auto source = open(folder / "a.h5");
    CHECK(next_of(*source) == nullptr);
    REQUIRE(source->read_layer().has_value());
    CHECK((bytes_of(*next_of(*source), kv::PartId::v) == state.layers[0][1].v.values.bytes));
    CHECK(next_of(*source) == nullptr);
    REQUIRE(source->skip_layer().has_value());
    CHECK(next_of(*source) == nullptr);
    CHECK(source->finish().has_value());
    const auto memory = kv::memory_source(std::make_shared<kv::State>(state), "memory");
    CHECK(next_of(*memory) == nullptr);
}

TEST_CASE("a chunk of a stream that is damaged, or cut off while it is read, is an error that names it") {
    Plan plan;
    plan.lengths = {11};
    plan.head_dim_k = plan.head_dim_v = 1024;  // a piece is more than what is kept of a file's small reads
    plan.tokens_per_chunk = 4;
    const kv::State state = make_state(plan);
    const TempDir folder;
    const std::string path = folder / "a.h5";
    save(state, path);
    std::vector<std::byte> image = read_bytes(path);
    const std::vector<std::byte>& values = state.layers[0][0].v.values.bytes;
    const auto at = std::search(image.begin(), image.end(), values.begin(), values.end());
    REQUIRE(at != image.end());
    const auto in_chunk_1 = at + static_cast<std::ptrdiff_t>(values.size() / 11 * 5);
    *in_chunk_1 ^= std::byte{1};
    write_bytes(path, image);
    const auto source = open(path);
    const auto stream = next_of(*source);
    CHECK(stream->chunks(kv::PartId::v) == 3);
    CHECK(stream->read(kv::PartId::v, 0, drop).has_value());
    // Also where whoever takes the rows finds fault with them: they are not what was written.
    const auto refuse = [](std::uint64_t, std::uint64_t, std::span<const std::byte>) -> Status {
        return fail(Errc::bad_input, "not a number");
    };
    for (const Status& read : {stream->read(kv::PartId::v, 1, drop), stream->read(kv::PartId::v, 1, refuse)}) {
        REQUIRE_FALSE(read.has_value());
        CHECK(read.error().code == Errc::bad_input);
        CHECK(read.error().message.find("layer 0, chunk 1 (tokens 4 to 7): CRC-32C") != std::string::npos);
    }
    CHECK(stream->read(kv::PartId::v, 0, refuse).error().message == "not a number");

    std::filesystem::resize_file(path, image.size() / 2);
    const auto last = next_of(*source);
    const Status cut = last->read(kv::PartId::v, 2, drop);
    REQUIRE_FALSE(cut.has_value());
    CHECK(cut.error().code == Errc::bad_input);
    CHECK(cut.error().message.find("ends at byte") != std::string::npos);
}
