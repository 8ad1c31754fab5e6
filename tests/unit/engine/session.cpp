#include "engine/session.h"

#include <cmath>

#include "support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

const std::vector<TokenId> prompt = {5, 17, 300, 42, 511, 0, 99};

kv::Header header_of(const Session& session) {
    kv::Header header;
    header.identity = engine::identity_of(session.model(), Digest{});
    return header;
}

// A layer in memory as one in a file is read: chunks of 100 rows in pieces of 7.
class Pieces final : public kv::LayerStream {
public:
    explicit Pieces(kv::Layer layer) : layer_(std::move(layer)) {}
    [[nodiscard]] const kv::Layer& layer() const noexcept override { return layer_; }
    [[nodiscard]] std::size_t chunks(kv::PartId part) const override {
        return (layer_.part(part).values.shape[0] + 99) / 100;
    }
    Status read(kv::PartId part, std::size_t chunk, TakeFn take) const override {
        const kv::Tensor& values = layer_.part(part).values;
        const std::uint64_t rows = values.shape[0], last = std::min<std::uint64_t>(rows, 100 * (chunk + 1));
        const std::size_t row_bytes = values.bytes.size() / rows;
        for (std::uint64_t row = 100 * chunk; row < last; row += 7) {
            const std::uint64_t end = std::min(row + 7, last);
            HETERO_CHECK(take(row, end, std::span(values.bytes).subspan(row * row_bytes, (end - row) * row_bytes)));
        }
        return {};
    }

private:
    kv::Layer layer_;
};

}  // namespace

TEST_CASE("what a state says of its model") {
    const auto model = tiny_model("llama3_rope/bf16");
    Digest tokenizer{};
    tokenizer[0] = 9;
    const kv::Identity identity = engine::identity_of(*model, tokenizer);
    CHECK(identity.arch == "llama");
    CHECK(identity.n_layers == 2);
    CHECK(identity.n_heads == 4);
    CHECK(identity.n_kv_heads == 1);
    CHECK(identity.head_dim_k == 16);
    CHECK(identity.head_dim_v == 16);
    CHECK(identity.vocab_size == 512);
    CHECK(identity.context_length == 512);
    CHECK(identity.rope_theta == 500000);
    CHECK(identity.rope_scaling == model->rope_scaling_text());
    CHECK(identity.rope_applied);
    CHECK(identity.arch_digest == model->arch_digest);
    CHECK(identity.tokenizer_digest == tokenizer);
    CHECK(identity.lineage == model->lineage);
    CHECK(identity.weights_digest == model->weights_digest);
}

TEST_CASE("sessions that cannot be are refused") {
    const auto model = tiny_model();
    engine::Options options;
    CHECK(error_of(Session::create(model, options, 0)).code == Errc::usage);
    const Error beyond = error_of(Session::create(model, options, 513));
    CHECK(beyond.code == Errc::usage);
    CHECK(has(beyond, "513"));
    CHECK(has(beyond, "512"));
    options.kv_dtype = DType::i8;
    CHECK(has(error_of(Session::create(model, options, 8)), "i8"));
    options = {};
    options.chunk_tokens = 0;
    CHECK(error_of(Session::create(model, options, 8)).code == Errc::usage);
    options = {};
    options.threads = -1;
    CHECK(error_of(Session::create(model, options, 8)).code == Errc::usage);
}

TEST_CASE("a session that does not fit the memory is refused with both figures") {
    auto model = std::make_shared<model::Model>(*tiny_model());
    model->config.context_length = 1U << 30U;
    // 3 layers, K and V, 2 heads of 16, f32.
    const std::uint64_t tokens = std::uint64_t{1} << 30U, kv_bytes = tokens * 3 * 2 * 2 * 16 * 4;
    engine::Options options;
    options.kv_dtype = DType::f32;
    const Error error = error_of(Session::create(model, options, tokens));
    CHECK(error.code == Errc::resource);
    CHECK(has(error, std::to_string(kv_bytes)));
    CHECK(has(error, "available"));
}

TEST_CASE("tokens outside the vocabulary or beyond the capacity are refused, and nothing is appended") {
    const auto session = make_session(tiny_model(), 8);
    for (const TokenId bad : {-1, 512, 1 << 30}) {
        const Error error = error_of(session->prefill(std::vector<TokenId>{1, 2, bad}, engine::Logits::none, {}));
        CHECK(error.code == Errc::usage);
        CHECK(has(error, std::to_string(bad)));
        CHECK(has(error, "position 2"));
        CHECK(error_of(session->decode(bad)).code == Errc::usage);
    }
    CHECK(session->position() == 0);
    prefill(*session, prompt);
    CHECK(session->position() == 7);
    CHECK(error_of(session->prefill(std::vector<TokenId>{1, 2}, engine::Logits::none, {})).code == Errc::usage);
    must(session->decode(1));
    CHECK(has(error_of(session->decode(1)), "8 of 8"));
    CHECK(session->position() == 8);
}

TEST_CASE("logits come only where they are asked for, with their positions") {
    const auto session = make_session(tiny_model(), 64, DType::f16, 3);
    std::vector<std::uint64_t> positions, progress;
    const auto note = [&](std::uint64_t position, std::span<const float> logits) -> Status {
        CHECK(logits.size() == 512);
        positions.push_back(position);
        return {};
    };
    must(session->prefill(prompt, engine::Logits::none, note, [&](std::uint64_t done) { progress.push_back(done); }));
    CHECK(positions.empty());
    CHECK(progress == std::vector<std::uint64_t>{3, 6, 7});
    must(session->prefill(prompt, engine::Logits::last, note));
    CHECK(positions == std::vector<std::uint64_t>{13});
    positions.clear();
    must(session->prefill(prompt, engine::Logits::all, note));
    CHECK(positions == std::vector<std::uint64_t>{14, 15, 16, 17, 18, 19, 20});
    must(session->prefill({}, engine::Logits::last, note));
    CHECK(session->position() == 21);

    const auto failing = [](std::uint64_t, std::span<const float>) -> Status {
        return fail(Errc::resource, "no more");
    };
    CHECK(has(error_of(session->prefill(prompt, engine::Logits::last, failing)), "no more"));
}

TEST_CASE("a value too large for the KV type is an error that names the place and the remedy") {
    // V of layer 1 is about 1 in size; 1e6 times that overflows f16, not bf16.
    const auto scaled = scaled_model(1, Target::v, 1e6F);
    const auto narrow = make_session(scaled->model, 32), wide = make_session(scaled->model, 32, DType::bf16);
    const Error error = error_of(narrow->prefill(prompt, engine::Logits::none, {}));
    CHECK(error.code == Errc::bad_input);
    CHECK(has(error, "layer 1, V, token 0, head "));
    CHECK(has(error, "f16"));
    CHECK(has(error, "bf16"));
    CHECK(narrow->position() == 0);
    must(wide->prefill(prompt, engine::Logits::none, {}));

    const auto keys = scaled_model(0, Target::k, 1e6F);
    CHECK(has(error_of(make_session(keys->model, 32)->decode(7)), "layer 0, K, token 0"));
    // Which thread meets it first makes no difference.
    const auto threaded = make_session(scaled->model, 32, DType::f16, 256, 3);
    CHECK(error_of(threaded->prefill(prompt, engine::Logits::none, {})).message == error.message);
}

TEST_CASE("NaN in the weights ends the run") {
    const auto scaled = scaled_model(2, Target::v, std::numeric_limits<float>::quiet_NaN());
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
        const auto session = make_session(scaled->model, 32, dtype);
        const Error error = error_of(session->prefill(prompt, engine::Logits::none, {}));
        CHECK(error.code == Errc::bad_input);
        CHECK(has(error, "layer 2, V, token 0, head 0, dim 0"));
        CHECK(has(error, "not a number"));
    }
}

TEST_CASE("an exported layer has the shape and type of the cache") {
    const auto session = make_session(tiny_model(), 32, DType::bf16);
    prefill(*session, prompt);
    const kv::Layer layer = must(session->export_layer(2));
    for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
        const kv::Part& part = layer.part(id);
        CHECK(part.scheme.codec == "bf16");
        CHECK(part.scheme.source_dtype == DType::bf16);
        CHECK(part.values.dtype == DType::bf16);
        CHECK(part.values.shape == std::vector<std::uint64_t>{7, 2, 16});
        CHECK(part.values.bytes.size() == 7 * 2 * 16 * 2);
        CHECK(part.scale.empty());
    }
    CHECK(error_of(session->export_layer(3)).code == Errc::usage);
}

TEST_CASE("an import must be complete and consistent before the session is used") {
    const auto model = tiny_model();
    const auto source = make_session(model, 32), target = make_session(model, 32);
    prefill(*source, prompt);
    std::vector<kv::Layer> layers;
    for (std::uint32_t layer = 0; layer < 3; ++layer) layers.push_back(must(source->export_layer(layer)));
    const kv::Header header = header_of(*source);

    must(target->import_layer(header, 1, layers[1], 7));
    CHECK(has(error_of(target->decode(1)), "layer 0 is missing"));
    CHECK(has(error_of(target->export_layer(1)), "layer 0 is missing"));
    CHECK(has(error_of(target->import_layer(header, 1, layers[1], 7)), "twice"));
    CHECK(error_of(target->import_layer(header, 0, layers[0], 6)).code == Errc::bad_input);
    CHECK(error_of(target->import_layer(header, 3, layers[0], 7)).code == Errc::usage);
    must(target->import_layer(header, 2, layers[2], 7));
    must(target->import_layer(header, 0, layers[0], 7));
    CHECK(target->position() == 7);
    must(target->decode(1));

    const auto small = make_session(model, 6);
    CHECK(has(error_of(small->import_layer(header, 0, layers[0], 7)), "7 tokens"));
    const auto fresh = make_session(model, 32);
    kv::Layer cut = layers[0];
    cut.v.values.bytes.pop_back();
    CHECK(has(error_of(fresh->import_layer(header, 0, cut, 7)), "layer 0, V"));
    const auto other = make_session(tiny_model("llama3_rope/bf16"), 32);
    CHECK(has(error_of(other->import_layer(header, 0, layers[0], 7)), "n_layers"));
}

TEST_CASE("NaN and infinity in a state are refused with their place") {
    const auto model = tiny_model();
    const auto source = make_session(model, 32);
    prefill(*source, prompt);
    const kv::Layer layer = must(source->export_layer(0));
    for (const auto& [bits, what] :
         std::vector<std::pair<std::uint16_t, std::string>>{{0x7E00, "not a number"}, {0xFC00, "infinite"}}) {
        kv::Layer damaged = layer;
        std::memcpy(damaged.k.values.bytes.data() + ((3 * 2 + 1) * 16 + 5) * 2, &bits, 2);
        const Error error = error_of(make_session(model, 32)->import_layer(header_of(*source), 0, damaged, 7));
        CHECK(error.code == Errc::bad_input);
        CHECK(has(error, "layer 0, K, token 3, head 1, dim 5"));
        CHECK(has(error, what));
    }
}

// K and V of all three layers, bit for bit.
void check_equal(const Session& one, const Session& other) {
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
        const kv::Layer left = must(one.export_layer(layer)), right = must(other.export_layer(layer));
        CHECK(left.k.values.bytes == right.k.values.bytes);
        CHECK(left.v.values.bytes == right.v.values.bytes);
    }
}

TEST_CASE("a long state is taken by all threads: bit for bit, and the first of its bad values is named") {
    const auto model = tiny_model();
    const std::uint64_t n_tokens = model->config.context_length;  // several tasks, the last one short
    REQUIRE(n_tokens >= 500);
    std::vector<TokenId> tokens(n_tokens - 3);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i * 7 % 512);
    const auto source = make_session(model, n_tokens);
    prefill(*source, tokens);
    const kv::Header header = header_of(*source);
    const auto target = make_session(model, n_tokens, DType::f16, 256, 3);
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
        must(target->import_layer(header, layer, must(source->export_layer(layer)), tokens.size()));
    }
    check_equal(*source, *target);
    kv::Layer damaged = must(source->export_layer(0));
    const std::uint16_t nan = 0x7E00;
    for (const std::size_t token : {std::size_t{450}, std::size_t{301}}) {
        std::memcpy(damaged.v.values.bytes.data() + (token * 2 * 16 + 3) * 2, &nan, 2);
    }
    const auto fresh = make_session(model, n_tokens, DType::f16, 256, 3);
    CHECK(
        has(error_of(fresh->import_layer(header, 0, damaged, tokens.size())), "layer 0, V, token 301, head 0, dim 3"));
}

TEST_CASE("a layer that is read in pieces is taken bit for bit, and its bad values are named") {
    const auto model = tiny_model();
    std::vector<TokenId> tokens(301);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i * 7 % 512);
    const auto source = make_session(model, 320);
    prefill(*source, tokens);
    kv::Header header = header_of(*source);
    for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) header.schemes(id).assign(3, source->kv_scheme(id));
    for (const int threads : {1, 3}) {
        const auto target = make_session(model, 320, DType::f16, 256, threads);
        REQUIRE(target->takes_stream(header));
        for (std::uint32_t layer = 0; layer < 3; ++layer) {
            const Pieces pieces(must(source->export_layer(layer)));
            must(target->import_layer(header, layer, pieces, tokens.size()));
        }
        check_equal(*source, *target);
        kv::Layer damaged = must(source->export_layer(0));
        const std::uint16_t nan = 0x7E00;
        std::memcpy(damaged.v.values.bytes.data() + (std::size_t{201} * 2 * 16 + 16 + 3) * 2, &nan, 2);
        const auto fresh = make_session(model, 320, DType::f16, 256, threads);
        CHECK(has(error_of(fresh->import_layer(header, 0, Pieces(damaged), tokens.size())),
                  "layer 0, V, token 201, head 1, dim 3"));
        CHECK(has(error_of(fresh->import_layer(header, 1, Pieces(damaged), 300)), "layer 1 has 300 tokens"));
    }
    const auto short_of = make_session(model, 320);
    CHECK(has(error_of(short_of->import_layer(header, 0, Pieces(must(source->export_layer(0))), 300)),
              "layer 0, K: 19264 bytes"));
    CHECK_FALSE(make_session(model, 320, DType::bf16)->takes_stream(header));
}

TEST_CASE("a state of another float type is converted, and refused where it does not fit") {
    const auto model = tiny_model();
    const auto source = make_session(model, 32, DType::f32), target = make_session(model, 32, DType::f16);
    prefill(*source, prompt);
    kv::Header header = header_of(*source);
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
        must(target->import_layer(header, layer, must(source->export_layer(layer)), 7));
    }
    // The same as rounding each value to nearest, which the conversion of single values defines.
    const kv::Layer wide = must(source->export_layer(1)), narrow = must(target->export_layer(1));
    std::vector<float> values(7 * 2 * 16);
    std::memcpy(values.data(), wide.k.values.bytes.data(), wide.k.values.bytes.size());
    std::vector<std::uint16_t> rounded(values.size());
    kernels::ops().f32_to_f16(values.data(), rounded.data(), values.size());
    CHECK(std::memcmp(rounded.data(), narrow.k.values.bytes.data(), narrow.k.values.bytes.size()) == 0);

    kv::Layer large = wide;
    const float value = 65520;
    std::memcpy(large.v.values.bytes.data() + 4 * 16, &value, 4);
    const Error error = error_of(make_session(model, 32)->import_layer(header, 0, large, 7));
    CHECK(has(error, "layer 0, V, token 0, head 1, dim 0"));
    CHECK(has(error, "bf16"));
    const float fits = std::nextafter(65520.0F, 0.0F);
    std::memcpy(large.v.values.bytes.data() + 4 * 16, &fits, 4);
    must(make_session(model, 32)->import_layer(header, 0, large, 7));
}
