// K and V that stay in memory as codes: those that a quantized state of the same values has, whatever way they came.
#include <cmath>

#include "kv/convert.h"
#include "quant/spec.h"
#include "support.h"

using namespace hetero;
using namespace hetero::test;
using engine::KvCodecs;
using kv::PartId;

namespace {

KvCodecs codecs_of(const char* k, const char* v) { return {must(quant::parse_spec(k)), must(quant::parse_spec(v))}; }

// Per token, by channel, rotated, with and without zeros, 8 and 4 bits.
const std::vector<KvCodecs>& all_codecs() {
    static const std::vector<KvCodecs> list = {codecs_of("int8", "int8"),
                                               codecs_of("int8:channel:g32:asym", "had:int8:token"),
                                               codecs_of("int4:channel:g32:asym", "had:int4:token:g8:asym"),
                                               codecs_of("had:int4:token:asym", "int4:token:g4"),
                                               codecs_of("int8:channel:g16", "int8:token:asym"),
                                               codecs_of("fp8_e4m3fn", "had:fp8_e4m3fn")};
    return list;
}

std::string name_of(const KvCodecs& codecs) { return quant::to_text(codecs.k) + " " + quant::to_text(codecs.v); }

std::unique_ptr<Session> session_of(const KvCodecs& codecs, std::uint32_t chunk_tokens = 256, int threads = 1,
                                    const std::string& model = "llama/f32") {
    engine::Options options;
    options.threads = threads;
    options.chunk_tokens = chunk_tokens;
    options.kv_codecs = codecs;
    options.sequences = 3;
    return must(Session::create(tiny_model(model), options, 200));
}

std::vector<TokenId> some_tokens(std::size_t n) {
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < n; ++i) tokens.push_back(static_cast<TokenId>((i * 37 + 11) % 512));
    return tokens;
}

std::vector<float> step(Session& session, TokenId token) {
    const std::span<const float> logits = must(session.decode(token));
    return {logits.begin(), logits.end()};
}

kv::Header header_of(const Session& session) {
    kv::Header header;
    header.identity = engine::identity_of(session.model(), Digest{});
    return header;
}

bool same_bytes(const kv::Part& a, const kv::Part& b) {
    return a.values.bytes == b.values.bytes && a.values.shape == b.values.shape && a.scale.bytes == b.scale.bytes &&
           a.scale.shape == b.scale.shape && a.zero.bytes == b.zero.bytes && a.scheme == b.scheme;
}

void copy_state(const Session& source, Session& target) {
    const kv::Header header = header_of(source);
    for (std::uint32_t layer = 0; layer < header.identity.n_layers; ++layer)
        must(target.import_layer(header, layer, must(source.export_layer(layer)), source.position()));
}

// All bytes of all layers.
std::vector<kv::Layer> state_of(const Session& session) {
    std::vector<kv::Layer> layers;
    for (std::uint32_t layer = 0; layer < header_of(session).identity.n_layers; ++layer)
        layers.push_back(must(session.export_layer(layer)));
    return layers;
}

std::size_t differing(const std::vector<kv::Layer>& a, const std::vector<kv::Layer>& b) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        for (const PartId part : {PartId::k, PartId::v}) count += !same_bytes(a[i].part(part), b[i].part(part));
    return count;
}

}  // namespace

// What the first layer keeps depends on the tokens alone.
TEST_CASE("the codes in memory are those of the quantized f16 state") {
    for (const KvCodecs& codecs : all_codecs())
        for (const std::size_t n : {1, 15, 16, 31, 32, 33, 63, 64, 65, 100, 130}) {
            INFO(name_of(codecs), ", ", n, " tokens");
            const auto tokens = some_tokens(n);
            const auto plain = make_session(tiny_model(), 200), prefilled = session_of(codecs),
                       decoded = session_of(codecs);
            prefill(*plain, tokens);
            prefill(*prefilled, tokens);
            for (const TokenId token : tokens) step(*decoded, token);
            const kv::Layer floats = must(plain->export_layer(0)), codes = must(prefilled->export_layer(0));
            const kv::Layer steps = must(decoded->export_layer(0));
            const kv::Header header = header_of(*plain);
            for (const PartId part : {PartId::k, PartId::v}) {
                const auto values = must(kv::decode_part(header, floats.part(part), n, part));
                const kv::Scheme scheme = prefilled->kv_scheme(part);
                const kv::Part expected = must(kv::encode_part(header, scheme, n, part, values));
                CHECK(same_bytes(codes.part(part), expected));
                CHECK(same_bytes(steps.part(part), expected));
            }
        }
}

TEST_CASE("a state in the resident codec is taken and given bit for bit") {
    for (const KvCodecs& codecs : all_codecs())
        for (const std::size_t n : {1, 20, 32, 64, 100}) {
            INFO(name_of(codecs), ", ", n, " tokens");
            const auto source = session_of(codecs), target = session_of(codecs), again = session_of(codecs);
            prefill(*source, some_tokens(n));
            copy_state(*source, *target);
            const auto state = state_of(*source);
            CHECK(differing(state_of(*target), state) == 0);
            copy_state(*target, *again);
            CHECK(differing(state_of(*again), state) == 0);
            // A group that is not full comes as codes; here it was f16.
            const bool whole = source->kv_scheme(PartId::k).params.axis != quant::Axis::channel || n % 32 == 0;
            if (whole) CHECK(step(*target, 7) == step(*source, 7));
        }
}

TEST_CASE("codes: a state replaces what a session holds") {
    const auto plain = make_session(tiny_model(), 200);
    prefill(*plain, some_tokens(40));
    for (const KvCodecs& codecs : all_codecs()) {
        INFO(name_of(codecs));
        const auto fresh = session_of(codecs), used = session_of(codecs);
        prefill(*used, some_tokens(100));
        copy_state(*plain, *fresh);
        copy_state(*plain, *used);
        CHECK(differing(state_of(*used), state_of(*fresh)) == 0);
        for (const TokenId token : some_tokens(40)) CHECK(step(*used, token) == step(*fresh, token));
    }
}

TEST_CASE("codes: a prefilled token has the same bits in any chunk, on any number of threads") {
    for (const KvCodecs& codecs : all_codecs()) {
        INFO(name_of(codecs));
        const auto tokens = some_tokens(110);
        const auto whole = session_of(codecs);
        const auto logits = prefill(*whole, tokens);
        for (const auto& [chunk, threads] : {std::pair{1U, 1}, {7U, 2}, {32U, 1}, {50U, 3}}) {
            const auto other = session_of(codecs, chunk, threads);
            CHECK(prefill(*other, tokens) == logits);
            CHECK(differing(state_of(*other), state_of(*whole)) == 0);
        }
        const auto one = session_of(codecs, 64, 1), three = session_of(codecs, 64, 3);
        for (const TokenId token : some_tokens(70)) CHECK(step(*one, token) == step(*three, token));
    }
}

TEST_CASE("codes are near to f16, 8 bits nearer than 4") {
    const auto tokens = some_tokens(90);
    const auto plain = make_session(tiny_model(), 200);
    const auto exact = prefill(*plain, tokens);
    const auto distance = [&](const KvCodecs& codecs) {
        const auto session = session_of(codecs);
        const auto logits = prefill(*session, tokens);
        double difference = 0, size = 0;
        for (std::size_t i = 0; i < exact.size(); ++i) {
            difference += std::pow(static_cast<double>(logits[i]) - static_cast<double>(exact[i]), 2);
            size += std::pow(static_cast<double>(exact[i]), 2);
        }
        return std::sqrt(difference / size);
    };
    const double token8 = distance(all_codecs()[0]), channel8 = distance(all_codecs()[1]);
    const double channel4 = distance(all_codecs()[2]);
    CHECK(token8 > 0);
    CHECK(token8 < 0.05);
    CHECK(channel8 > 0);
    CHECK(channel8 < 0.05);
    CHECK(channel4 > channel8);
    CHECK(channel4 < 0.3);
}

TEST_CASE("codes: forks share, and what is truncated is computed again") {
    for (const KvCodecs& codecs : all_codecs()) {
        INFO(name_of(codecs));
        const auto session = session_of(codecs);
        prefill(*session, some_tokens(75));
        const auto fork = must(session->fork(75));
        for (const TokenId token : some_tokens(40)) CHECK(step(*fork, token) == step(*session, token));
        // Back within the group that is open, and to where one begins: nothing is lost.
        must(session->truncate(96));
        must(fork->truncate(96));
        const auto again = step(*fork, 3);
        CHECK(step(*session, 3) == again);
        // Into a group that was closed: its tokens come back from their codes, and stay there until new ones join.
        must(session->truncate(70));
        CHECK(session->position() == 70);
        const auto kept = state_of(*session);
        CHECK(kept[0].k.values.shape[0] == 70);
        step(*session, 3);
        CHECK(session->position() == 71);
        must(session->truncate(0));
        const auto fresh = session_of(codecs);
        CHECK(prefill(*session, some_tokens(75)) == prefill(*fresh, some_tokens(75)));
    }
}

TEST_CASE("what cannot stay in memory as codes is refused") {
    CHECK(has(error_of(engine::resident_codecs("int9")), "int8-channel"));
    for (const char* name : {"int8", "int4", "fp8_e4m3fn", "int8-channel", "int4-channel"})
        CHECK(engine::resident_codecs(name).has_value());
    engine::Options options;
    const auto error_with = [&](const char* k, const char* v, const char* model) {
        options.kv_codecs = codecs_of(k, v);
        return error_of(Session::create(tiny_model(model), options, 10));
    };
    CHECK(has(error_with("int8", "int8", "deepseek_v3/bf16"), "layer 0 keeps latents"));
    CHECK(has(error_with("int8:channel:g32", "int8", "mistral_swa/bf16"), "layer 0 has a window"));
    CHECK(has(error_with("int6", "int8", "llama/f32"), "K: 'int6:token' cannot stay in memory"));
    CHECK(has(error_with("int8", "int8:channel:g32", "llama/f32"), "V: 'int8:channel:g32'"));
    CHECK(has(error_with("int8:channel:g48", "int8", "llama/f32"), "divide a page"));
    CHECK(has(error_with("int8:token:f32", "int8", "llama/f32"), "scales must be f16"));
    options.kv_dtype = DType::bf16;
    CHECK(has(error_with("int8", "int8", "llama/f32"), "made from f16"));
}

TEST_CASE("damaged codes are refused") {
    const auto source = session_of(all_codecs()[0]), target = session_of(all_codecs()[0]);
    prefill(*source, some_tokens(10));
    const kv::Header header = header_of(*source);
    kv::Layer layer = must(source->export_layer(0));
    layer.v.scale.bytes[3] = std::byte{0x7C};
    layer.v.scale.bytes[2] = std::byte{0};
    CHECK(has(error_of(target->import_layer(header, 0, layer, 10)), "layer 0, V: a scale or zero is not finite"));
    must(target->truncate(0));
    layer = must(source->export_layer(0));
    layer.k.values.bytes.pop_back();
    CHECK(has(error_of(target->import_layer(header, 0, layer, 10)), "bytes where 10 tokens"));
}
