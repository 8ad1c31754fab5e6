// Prefill layer by layer, where layers are observed: the bits of chunk by chunk, and each layer complete when
// announced.
#include <thread>

#include "support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

using engine::Precision;

constexpr std::uint32_t chunk_tokens = 5;

struct Setup {
    Precision precision = Precision::fast;
    std::uint64_t block_tokens = 0;
    std::optional<engine::KvCodecs> codecs = {};
    std::uint64_t capacity = 40;
};

std::unique_ptr<Session> session_of(const std::shared_ptr<const model::Model>& model, const Setup& setup) {
    engine::Options options;
    options.threads = 2;
    options.chunk_tokens = chunk_tokens;
    options.precision = setup.precision;
    options.block_tokens = setup.block_tokens;
    options.kv_codecs = setup.codecs;
    return must(Session::create(model, options, setup.capacity));
}

std::vector<TokenId> some_tokens(std::size_t count) {
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>((i * 37 + 11) % 200));
    return tokens;
}

struct Outcome {
    std::vector<std::vector<float>> logits;
    std::vector<std::uint64_t> positions;
    std::vector<kv::Layer> layers;
};

Outcome run(Session& session, std::span<const TokenId> tokens, engine::Logits which) {
    Outcome outcome;
    must(session.prefill(tokens, which, [&](std::uint64_t position, std::span<const float> logits) -> Status {
        outcome.positions.push_back(position);
        outcome.logits.emplace_back(logits.begin(), logits.end());
        return {};
    }));
    for (std::uint32_t layer = 0; layer < session.model().config.n_layers; ++layer)
        outcome.layers.push_back(must(session.export_layer(layer)));
    return outcome;
}

bool same_bytes(const kv::Layer& a, const kv::Layer& b) {
    for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
        for (const auto array : {&kv::Part::values, &kv::Part::scale, &kv::Part::zero}) {
            if ((a.part(id).*array).shape != (b.part(id).*array).shape) return false;
            if ((a.part(id).*array).bytes != (b.part(id).*array).bytes) return false;
        }
    }
    return true;
}

// Two prompts one after the other, so that the second begins at a position that is not 0.
void check_same(const std::shared_ptr<const model::Model>& model, Setup setup, engine::Logits which) {
    const auto plain = session_of(model, setup);
    setup.block_tokens = 15;
    const auto observed = session_of(model, setup);
    const std::vector<TokenId> tokens = some_tokens(38);
    const std::span<const TokenId> all(tokens);
    for (const auto part : {all.first(2), all.subspan(2, 13), all.subspan(15)}) {
        std::vector<kv::Layer> seen;
        observed->observe_layers([&](std::uint32_t layer, std::uint64_t end) -> Status {
            CHECK(layer == seen.size());
            CHECK(end == observed->position() + part.size() - (part.size() > 15 ? part.size() - 15 : 0));
            seen.push_back(must(observed->export_layer(layer, end)));
            return {};
        });
        const Outcome expected = run(*plain, part, which), got = run(*observed, part, which);
        CHECK(expected.logits == got.logits);
        CHECK(expected.positions == got.positions);
        REQUIRE(seen.size() == expected.layers.size());
        for (std::size_t i = 0; i < seen.size(); ++i) {
            CHECK(same_bytes(expected.layers[i], got.layers[i]));
            CHECK(same_bytes(expected.layers[i], seen[i]));
        }
    }
}

}  // namespace

TEST_CASE("layer by layer gives the bits of chunk by chunk, of every model") {
    for (const std::string& name : all_tiny_models()) {
        CAPTURE(name);
        const auto model = tiny_model(name);
        for (const Precision precision : {Precision::fast, Precision::precise})
            check_same(model, {.precision = precision}, engine::Logits::last);
    }
}

TEST_CASE("layer by layer gives the bits of chunk by chunk, with codes in the cache and with all logits") {
    const auto model = tiny_model("gguf/llama-q8_0.gguf");
    check_same(model, {}, engine::Logits::all);
    check_same(model, {}, engine::Logits::none);
    for (const char* name : {"int8", "int8-channel"}) {
        CAPTURE(std::string(name));
        check_same(model, {.codecs = must(engine::resident_codecs(name))}, engine::Logits::last);
    }
}

TEST_CASE("a layer that was announced can be read while the later ones are computed") {
    const auto model = tiny_model();
    const std::vector<TokenId> tokens = some_tokens(38);
    const auto plain = session_of(model, {});
    const Outcome expected = run(*plain, tokens, engine::Logits::last);
    const auto observed = session_of(model, {.block_tokens = 1000});
    std::vector<kv::Layer> seen(model->config.n_layers);
    std::vector<std::thread> readers;
    observed->observe_layers([&](std::uint32_t layer, std::uint64_t end) -> Status {
        readers.emplace_back([&, layer, end] { seen[layer] = must(observed->export_layer(layer, end)); });
        return {};
    });
    const Outcome got = run(*observed, tokens, engine::Logits::last);
    for (std::thread& reader : readers) reader.join();
    CHECK(expected.logits == got.logits);
    for (std::size_t i = 0; i < seen.size(); ++i) CHECK(same_bytes(expected.layers[i], seen[i]));
}

TEST_CASE("an error of the observer ends the prefill") {
    const auto session = session_of(tiny_model(), {.block_tokens = 1000});
    session->observe_layers([](std::uint32_t layer, std::uint64_t) -> Status {
        if (layer == 1) return fail(Errc::peer, "the peer has left");
        return {};
    });
    const Status status = session->prefill(some_tokens(38), engine::Logits::none, {});
    REQUIRE_FALSE(status.has_value());
    CHECK(status.error().message == "the peer has left");
    // The session is still of use.
    session->observe_layers({});
    must(session->truncate(0));
    const Outcome again = run(*session, some_tokens(38), engine::Logits::last);
    CHECK(again.logits == run(*session_of(tiny_model(), {}), some_tokens(38), engine::Logits::last).logits);
}
