// What layers keep: latents, and windows whose states have a tail only.
#include <cmath>
#include <cstring>

#include "engine/kv_cache.h"
#include "support.h"

using namespace hetero;
using namespace hetero::test;
using kv::LayerKind;
using kv::PartId;

namespace {

std::vector<TokenId> tokens_of(std::size_t n) {
    std::vector<TokenId> tokens(n);
    for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<TokenId>(i * 37 % 512);
    return tokens;
}

kv::Header header_of(const Session& session) {
    kv::Header header;
    header.identity = engine::identity_of(session.model(), Digest{});
    header.layer_shapes = engine::layer_shapes(session.model());
    return header;
}

void copy_state(const Session& source, Session& target) {
    const kv::Header header = header_of(source);
    for (std::uint32_t layer = 0; layer < header.identity.n_layers; ++layer) {
        must(target.import_layer(header, layer, must(source.export_layer(layer)), source.position()));
    }
}

std::vector<float> step(Session& session, TokenId token) {
    const std::span<const float> logits = must(session.decode(token));
    return {logits.begin(), logits.end()};
}

}  // namespace

TEST_CASE("a DeepSeek-V3 keeps 70,272 bytes of each token at 16 bits") {
    const std::vector<model::KvLayout> layers(61, {1, 512, 64, model::KvLayout::Kind::latent});
    CHECK(engine::KvPool::page_bytes(layers, DType::f16) == 70272 * engine::KvPool::page_tokens);
    CHECK(engine::KvPool::bytes_needed(layers, DType::bf16, engine::KvPool::pages_for(4096)) == 70272ULL * 4096);
}

TEST_CASE("which kinds the layers of a model are") {
    CHECK(engine::layer_shapes(*tiny_model("llama/f32")).empty());
    CHECK(engine::layer_shapes(*tiny_model("mistral_swa/bf16")) ==
          std::vector<kv::LayerShape>(3, {LayerKind::swa, 24}));
    CHECK(engine::layer_shapes(*tiny_model("gemma2/bf16")) ==
          std::vector<kv::LayerShape>{{LayerKind::swa, 16}, {LayerKind::gqa, 0}});
    CHECK(engine::layer_shapes(*tiny_model("deepseek_v2/bf16")) == std::vector<kv::LayerShape>(2, {LayerKind::mla, 0}));
}

TEST_CASE("a latent layer: one row of both parts, and a state without heads") {
    const model::KvLayout layout{1, 3, 2, model::KvLayout::Kind::latent};
    auto cache = must(engine::KvCache::create(must(engine::KvPool::create({&layout, 1}, DType::f32, 1)), 4));
    must(cache.prepare(0, 4));
    const float latent[] = {1, 2, 3}, key[] = {4, 5};
    must(cache.store(0, PartId::k, 2, latent));
    must(cache.store(0, PartId::v, 2, key));
    const kernels::KvView k = cache.view(0, PartId::k, 0), v = cache.view(0, PartId::v, 0);
    CHECK(k.token_stride == 5);
    CHECK(v.token_stride == 5);
    CHECK(v.offset == k.offset);
    const float* row = reinterpret_cast<const float*>(k.pages[0] + k.offset) + 2 * k.token_stride;
    CHECK(std::vector<float>(row, row + 5) == std::vector<float>{1, 2, 3, 4, 5});
    std::vector<float> saved(2);
    cache.save(0, PartId::v, 2, 3, std::as_writable_bytes(std::span(saved)));
    CHECK(saved == std::vector<float>{4, 5});
    const float odd[] = {0, NAN};
    CHECK(has(error_of(cache.store(0, PartId::v, 1, odd)), "layer 0, V, token 1, head 0, dim 1"));

    const auto model = tiny_model("deepseek_v3/bf16");
    const kv::Identity identity = engine::identity_of(*model, Digest{});
    CHECK(identity.n_kv_heads == 1);
    CHECK(identity.head_dim_k == 32);
    CHECK(identity.head_dim_v == 8);
    const auto session = make_session(model, 64);
    prefill(*session, tokens_of(9));
    const kv::Layer layer = must(session->export_layer(1));
    CHECK(layer.k.values.shape == std::vector<std::uint64_t>{9, 1, 32});
    CHECK(layer.v.values.shape == std::vector<std::uint64_t>{9, 1, 8});
}

TEST_CASE("a state of another kind is refused") {
    const auto model = tiny_model("deepseek_v3/bf16");
    const auto source = make_session(model, 64), target = make_session(model, 64);
    prefill(*source, tokens_of(9));
    kv::Header header = header_of(*source);
    const kv::Layer layer = must(source->export_layer(0));
    header.layer_shapes.clear();
    CHECK(has(error_of(target->import_layer(header, 0, layer, 9)), "layer 0: the state is gqa, the model needs mla"));
    header.layer_shapes.assign(2, {LayerKind::mla, 0});
    CHECK(has(error_of(target->import_layer(header, 0, layer, 9)), "shapes of 2 layers"));
    header.identity.head_dim_v = 16;
    CHECK(has(error_of(target->import_layer(header, 0, layer, 9)), "head_dim_v = 16, the model 8"));

    const auto sliding = tiny_model("mistral_swa/bf16");
    const auto windowed = make_session(sliding, 64), other = make_session(sliding, 64);
    prefill(*windowed, tokens_of(40));
    kv::Header narrow = header_of(*windowed);
    narrow.layer_shapes[1].window = 23;
    CHECK(has(error_of(other->import_layer(narrow, 1, must(windowed->export_layer(1)), 40)),
              "layer 1: the state is swa (window 23), the model needs swa (window 24)"));
}

TEST_CASE("a layer with a window is exported as its tail, and continues from it bit for bit") {
    for (const std::string name : {"mistral_swa/bf16", "gemma2/bf16", "gemma3_text/bf16"}) {
        CAPTURE(name);
        const auto model = tiny_model(name);
        for (const std::size_t n : {5U, 15U, 16U, 17U, 24U, 25U, 60U}) {
            CAPTURE(n);
            const auto source = make_session(model, 128), target = make_session(model, 128);
            prefill(*source, tokens_of(n));
            const auto shapes = engine::layer_shapes(*model);
            for (std::uint32_t layer = 0; layer < shapes.size(); ++layer) {
                CHECK(must(source->export_layer(layer)).v.values.shape[0] == shapes[layer].stored_tokens(n));
            }
            copy_state(*source, *target);
            for (TokenId token = 0; token < 30; ++token) CHECK(step(*source, token) == step(*target, token));
            // The last position computed anew, as where a state has no logits.
            const auto again = make_session(model, 128);
            must(source->truncate(n));
            copy_state(*source, *again);
            must(again->truncate(n - 1));
            must(source->truncate(n - 1));
            CHECK(step(*again, tokens_of(n).back()) == step(*source, tokens_of(n).back()));
            CHECK(step(*again, 7) == step(*source, 7));
        }
    }
}

TEST_CASE("a whole state serves a layer with a window") {
    const auto model = tiny_model("mistral_swa/bf16");
    const auto source = make_session(model, 128), target = make_session(model, 128);
    auto whole = std::make_shared<model::Model>(*model);
    for (model::KvLayout& layout : whole->program.kv) layout.window = 0;  // exports every token
    const auto exporting = make_session(whole, 128);
    prefill(*source, tokens_of(50));
    prefill(*exporting, tokens_of(50));
    const kv::Header header = header_of(*exporting);
    CHECK(header.layer_shapes.empty());
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
        must(target->import_layer(header, layer, must(exporting->export_layer(layer)), 50));
    }
    CHECK(target->can_truncate(10));
    CHECK(step(*target, 3) == step(*source, 3));
}

TEST_CASE("what a tail does not hold cannot be gone back to") {
    const auto model = tiny_model("mistral_swa/bf16");
    const auto source = make_session(model, 128), target = make_session(model, 128);
    prefill(*source, tokens_of(50));
    copy_state(*source, *target);
    CHECK(target->can_truncate(49));
    CHECK_FALSE(target->can_truncate(48));
    const Error error = error_of(target->truncate(48));
    CHECK(error.code == Errc::usage);
    CHECK(has(error, "from token 50 to 48"));
    CHECK(target->position() == 50);
    must(target->truncate(49));
    CHECK(has(error_of(target->export_layer(0)), "layer 0: token 25 is not in the cache"));
    for (TokenId token = 0; token < 30; ++token) step(*target, token);
    CHECK(target->can_truncate(49));
    CHECK_FALSE(target->can_truncate(48));
    must(target->truncate(0));
    CHECK(prefill(*target, tokens_of(50)) == prefill(*make_session(model, 128), tokens_of(50)));
    CHECK(target->can_truncate(10));
}

TEST_CASE("a router whose score is no number ends the run, and says where") {
    auto model = std::make_shared<model::Model>(*tiny_model("qwen3_moe/bf16"));
    std::vector<std::uint16_t> weights;
    for (model::Op& any : model->program.ops) {
        auto* moe = std::get_if<model::MoeAdd>(&any);
        if (moe == nullptr || !weights.empty()) continue;
        REQUIRE(moe->router.dtype == DType::bf16);
        weights.resize(moe->router.rows * moe->router.cols);
        std::memcpy(weights.data(), moe->router.data, weights.size() * 2);
        weights[5 * moe->router.cols] = 0x7FC0;
        moe->router.data = reinterpret_cast<const std::byte*>(weights.data());
    }
    const Error error = error_of(make_session(model, 32)->prefill(tokens_of(7), engine::Logits::none, {}));
    CHECK(error.code == Errc::bad_input);
    CHECK(has(error, "model.layers.0.mlp.gate.weight: the score of token 0 for expert 5 is NaN"));
}

TEST_CASE("a token's result does not depend on who else is in its chunk") {
    for (const std::string name : {"mixtral/bf16", "deepseek_v3/bf16"}) {
        const auto model = tiny_model(name);
        const auto together = make_session(model, 64, DType::f16, 64, 2),
                   alone = make_session(model, 64, DType::f16, 1);
        const auto tokens = tokens_of(40);
        std::vector<float> expected;
        const auto collect = [](std::vector<float>& into) {
            return [&into](std::uint64_t, std::span<const float> logits) -> Status {
                into.insert(into.end(), logits.begin(), logits.end());
                return {};
            };
        };
        std::vector<float> got;
        must(together->prefill(tokens, engine::Logits::all, collect(got)));
        must(alone->prefill(tokens, engine::Logits::all, collect(expected)));
        CHECK((got == expected));
    }
}
