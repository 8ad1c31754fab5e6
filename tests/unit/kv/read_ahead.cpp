// Reading into memory that is used again, and by a thread of its own.
#include <algorithm>

#include "unit/kv/states.h"

using namespace hetero;
using namespace hetero::test;

namespace {

kv::State all_of(kv::Source& source) {
    kv::State state;
    state.header = source.header();
    kv::Layer layer;
    for (std::size_t s = 0; s < state.header.sequences.size(); ++s) {
        auto& layers = state.layers.emplace_back();
        for (std::uint32_t i = 0; i < state.header.identity.n_layers; ++i) {
            const Status read = source.read_into(layer);
            REQUIRE_MESSAGE(read.has_value(), read.error().message);
            layers.push_back(layer);
        }
    }
    REQUIRE(source.finish().has_value());
    return state;
}

Plan plan_of(const std::string& k, const std::string& v) {
    Plan plan;
    plan.n_layers = 5;
    plan.lengths = {11, 1, 7};
    plan.k = spec_scheme(k);
    plan.v = spec_scheme(v);
    plan.tokens_per_chunk = 4;
    return plan;
}

class Failing final : public kv::Source {
public:
    Failing(std::unique_ptr<kv::Source> inner, int good) : inner_(std::move(inner)), good_(good) {}
    [[nodiscard]] const kv::Header& header() const noexcept override { return inner_->header(); }
    [[nodiscard]] const std::string& name() const noexcept override { return inner_->name(); }
    Result<kv::Layer> read_layer() override {
        if (good_-- > 0) return inner_->read_layer();
        return fail(Errc::peer, "the peer is gone");
    }
    Status finish() override { return inner_->finish(); }

private:
    std::unique_ptr<kv::Source> inner_;
    int good_;
};

}  // namespace

TEST_CASE("a layer's memory is used again for layers of other schemes and lengths") {
    Plan plan = plan_of("f16", "f16");
    for (const char* k : {"int8:token:g4:asym", "f16", "int8:channel:g4", "f32", "int4:token:g4"})
        plan.k_of_layer.push_back(spec_scheme(k));
    for (const char* v : {"int4:token:g4", "f16", "f16", "bf16", "int8:token:g4:asym"})
        plan.v_of_layer.push_back(spec_scheme(v));
    const kv::State state = make_state(plan);
    const TempDir folder;
    save(state, folder / "a.h5");
    auto source = kv::open_file(folder / "a.h5", kv::Verify::checksums);
    REQUIRE_MESSAGE(source.has_value(), source.error().message);
    CHECK(difference(state, all_of(**source)) == "");
}

TEST_CASE("what is read ahead is what is there") {
    const TempDir folder;
    const kv::State state = make_state(plan_of("int8:token:g4:asym", "f16"));
    save(state, folder / "a.h5");
    auto file = kv::open_file(folder / "a.h5", kv::Verify::checksums);
    REQUIRE(file.has_value());
    const auto ahead = kv::read_ahead(std::move(*file));
    CHECK(difference(state, all_of(*ahead)) == "");
    CHECK_FALSE(ahead->read_layer().has_value());  // beyond the end

    const auto one_by_one = kv::read_ahead(kv::memory_source(std::make_shared<kv::State>(state), "memory"));
    const auto read = kv::read_all(*one_by_one);
    REQUIRE(read.has_value());
    CHECK(difference(state, *read) == "");
}

TEST_CASE("an error comes after the layers before it, and stays") {
    const auto state = std::make_shared<kv::State>(make_state(plan_of("f16", "f16")));
    for (const int good : {0, 1, 6, 14}) {
        const auto ahead = kv::read_ahead(std::make_unique<Failing>(kv::memory_source(state, "memory"), good));
        kv::Layer layer;
        for (int i = 0; i < good; ++i) REQUIRE(ahead->read_into(layer).has_value());
        for (int i = 0; i < 2; ++i) {
            const Status failed = ahead->read_into(layer);
            REQUIRE_FALSE(failed.has_value());
            CHECK(failed.error().message == "the peer is gone");
        }
        const Status finished = ahead->finish();
        REQUIRE_FALSE(finished.has_value());
        CHECK(finished.error().message == "the peer is gone");
    }
}

TEST_CASE("a source that is left before its end does not wait for it") {
    const auto state = std::make_shared<kv::State>(make_state(plan_of("f16", "f16")));
    for (const int taken : {0, 1, 2, 3, 12, 13, 14}) {  // of 15: those that remain have been read ahead by then
        const auto ahead = kv::read_ahead(kv::memory_source(state, "memory"));
        kv::Layer layer;
        for (int i = 0; i < taken; ++i) REQUIRE(ahead->read_into(layer).has_value());
        if (taken == 1 || taken == 3) continue;
        CHECK_FALSE(ahead->finish().has_value());  // nor does it say that all is well
        CHECK_FALSE(ahead->read_into(layer).has_value());
    }
}

TEST_CASE("layers that are skipped are not read from a file") {
    const TempDir folder;
    const kv::State state = make_state(plan_of("int8:token:g4:asym", "f16"));
    save(state, folder / "a.h5");
    {  // damage in the first sequence's values
        std::vector<std::byte> image = read_bytes(folder / "a.h5");
        const std::vector<std::byte>& values = state.layers[0][2].v.values.bytes;
        const auto at = std::search(image.begin(), image.end(), values.begin(), values.end());
        REQUIRE(at != image.end());
        *at ^= std::byte{1};
        write_bytes(folder / "a.h5", image);
    }
    const auto read_rest = [&](kv::Source& source, std::size_t skipped) {
        const std::size_t n_layers = state.header.identity.n_layers;
        for (std::size_t i = 0; i < skipped; ++i) REQUIRE(source.skip_layer().has_value());
        for (std::size_t i = skipped; i < state.layers.size() * n_layers; ++i) {
            const auto layer = source.read_layer();
            REQUIRE_MESSAGE(layer.has_value(), layer.error().message);
            CHECK(layer->v.values.bytes == state.layers[i / n_layers][i % n_layers].v.values.bytes);
        }
        CHECK(source.finish().has_value());
        CHECK_FALSE(source.skip_layer().has_value());
    };
    for (const std::size_t skipped : {3, 5, 6, 14, 15}) {
        auto file = kv::open_file(folder / "a.h5");
        REQUIRE(file.has_value());
        read_rest(**file, skipped);
        const auto memory = kv::memory_source(std::make_shared<kv::State>(state), "memory");
        read_rest(*memory, skipped);
    }
    auto file = kv::open_file(folder / "a.h5");
    REQUIRE(file.has_value());
    CHECK_FALSE(kv::read_all(**file).has_value());
}
