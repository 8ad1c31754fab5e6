// K and V between a device and states: what one side computes, the other continues, in every form and from every tier.
#include <thread>

#include "kv/convert.h"
#include "quant/spec.h"
#include "support.h"

using namespace hetero;
using namespace hetero::test;
using kv::PartId;

namespace {

constexpr double tolerance = 1e-3;

struct Codecs {
    const char *k, *v;
    [[nodiscard]] engine::KvCodecs specs() const { return {must(quant::parse_spec(k)), must(quant::parse_spec(v))}; }
};
// Per token, by channel, rotated, with and without zeros, 8 and 4 bits.
constexpr Codecs all_codecs[] = {{"int8", "int8"},
                                 {"int8:channel:g32:asym", "had:int8:token"},
                                 {"int4:channel:g32:asym", "had:int4:token:g8:asym"},
                                 {"had:int4:token:asym", "int4:token:g4"},
                                 {"int8:channel:g16", "int8:token:asym"},
                                 {"fp8_e4m3fn", "had:fp8_e4m3fn"}};

}  // namespace

TEST_CASE("a state of the CPU is continued on a device, and the reverse") {
    for (const std::string& name : all_tiny_models()) {
        CAPTURE(name);
        const auto model = tiny_model(name);
        const auto prompt = some_tokens(name == "llama/f32" ? 70 : 19);
        for (const bool on_device : {false, true}) {
            const auto source = session_of(model, {.on_device = on_device, .kv_dtype = DType::f16});
            const auto target = session_of(model, {.on_device = !on_device, .kv_dtype = DType::f16});
            const auto last = prefill(*source, prompt);
            copy_state(*source, *target);
            CHECK(same_bytes(state_of(*source), state_of(*target)));
            const Continued expected = continue_from(*source, last, 3), got = continue_from(*target, last, 3);
            for (std::size_t i = 0; i < got.logits.size(); ++i)
                CHECK(largest_difference(got.logits[i], expected.logits[i]) <= tolerance);
        }
    }
}

TEST_CASE("the codes on a device are those of the quantized state of the same values") {
    const auto model = tiny_model();
    for (const Codecs& names : all_codecs)
        for (const std::size_t n : {1, 33, 66}) {
            INFO(names.k, " ", names.v, ", ", n, " tokens");
            const auto codecs = names.specs();
            const auto prompt = some_tokens(n);
            const auto plain = session_of(model, {.kv_dtype = DType::f16});
            const auto prefilled = session_of(model, {.kv_dtype = DType::f16, .codecs = codecs, .chunk_tokens = 24});
            const auto decoded = session_of(model, {.kv_dtype = DType::f16, .codecs = codecs});
            prefill(*plain, prompt);
            prefill(*prefilled, prompt);
            for (const TokenId token : prompt) step(*decoded, token);
            // What the first layer keeps depends on the tokens alone.
            const kv::Layer floats = must(plain->export_layer(0));
            const kv::Header header = header_of(*plain);
            for (const PartId part : {PartId::k, PartId::v}) {
                const auto values = must(kv::decode_part(header, floats.part(part), n, part));
                kv::Layer expected;
                expected.part(part) = must(kv::encode_part(header, prefilled->kv_scheme(part), n, part, values));
                kv::Layer got[2];
                got[0].part(part) = must(prefilled->export_layer(0)).part(part);
                got[1].part(part) = must(decoded->export_layer(0)).part(part);
                CHECK(same_bytes(got[0], expected));
                CHECK(same_bytes(got[1], expected));
            }
        }
}

TEST_CASE("attention over codes is the CPU's, and a state in them is taken and given bit for bit") {
    const auto model = tiny_model("qwen3/bf16");
    const auto prompt = some_tokens(70);
    for (const Codecs& names : all_codecs) {
        INFO(names.k, " ", names.v);
        const auto codecs = names.specs();
        const Wanted wanted{.kv_dtype = DType::f16, .codecs = codecs};
        const Wanted on_cpu{.on_device = false, .kv_dtype = DType::f16, .codecs = codecs};
        const auto source = session_of(model, on_cpu), here = session_of(model, on_cpu);
        const auto there = session_of(model, wanted);
        const auto last = prefill(*source, prompt);
        copy_state(*source, *here);
        copy_state(*source, *there);
        CHECK(same_bytes(state_of(*here), state_of(*there)));
        const Continued expected = continue_from(*here, last, 5), got = continue_from(*there, last, 5);
        for (std::size_t i = 0; i < got.logits.size(); ++i)
            CHECK(largest_difference(got.logits[i], expected.logits[i]) <= tolerance);
        const auto back = session_of(model, on_cpu);
        copy_state(*there, *back);
        CHECK(same_bytes(state_of(*there), state_of(*back)));
        // Back into a group that was full, and on from there.
        for (const auto* session : {&here, &there}) must((*session)->truncate(63));
        CHECK(largest_difference(step(**&here, 9), step(**&there, 9)) <= tolerance);
        const auto forked = must(there->fork(40));
        const auto forked_here = must(back->fork(40));
        CHECK(largest_difference(step(*forked_here, 9), step(*forked, 9)) <= tolerance);
    }
}

TEST_CASE("where K and V stay changes no bit") {
    for (const std::string name : {"llama/f32", "mistral_swa/bf16", "deepseek_v2/bf16"}) {
        const auto model = tiny_model(name);
        const auto prompt = some_tokens(75);
        const auto resident = session_of(model, {.kv_dtype = DType::f16, .chunk_tokens = 32, .sequences = 2});
        const Continued expected = run(*resident, prompt, 5);
        const auto fork_expected = step(*must(resident->fork(70)), 5);
        const auto state = state_of(*resident);
        std::vector<std::string> all_tiers = {"host"};
        if (name == "llama/f32") all_tiers = {"host", "file", "k=host", "v=file", "1-1=host", "0.v=host,1=file"};
        for (const std::string& tiers : all_tiers) {
            CAPTURE(name);
            CAPTURE(tiers);
            const auto session =
                session_of(model, {.kv_dtype = DType::f16, .tiers = tiers, .chunk_tokens = 32, .sequences = 2});
            CHECK((run(*session, prompt, 5) == expected));
            CHECK((step(*must(session->fork(70)), 5) == fork_expected));
            CHECK(same_bytes(state_of(*session), state));
            const auto target = session_of(model, {.kv_dtype = DType::f16, .tiers = tiers});
            copy_state(*session, *target);
            CHECK(same_bytes(state_of(*target), state));
            CHECK((step(*target, 7) == step(*session, 7)));
        }
    }
}

TEST_CASE("layers are handed out while later ones are computed, and can be read at once") {
    const auto model = tiny_model("llama3_rope/bf16");
    const auto prompt = some_tokens(75);
    const auto plain = session_of(model, {.kv_dtype = DType::f16});
    prefill(*plain, prompt);
    const auto expected = state_of(*plain);
    emulation::Settings settings = emulation::settings();
    settings.late = true;
    const emulation::Configured configured(settings);
    for (const std::string tiers : {"device", "host", "k=host"})
        for (const std::uint64_t block : {0, 1000}) {
            const auto session =
                session_of(model, {.kv_dtype = DType::f16, .tiers = tiers, .chunk_tokens = 16, .block_tokens = block});
            std::vector<kv::Layer> seen(model->config.n_layers);
            session->observe_layers([&](std::uint32_t layer, std::uint64_t end) -> Status {
                std::thread reader([&] { seen[layer] = must(session->export_layer(layer, end)); });
                reader.join();
                return {};
            });
            prefill(*session, prompt);
            CHECK(same_bytes(seen, expected));
            CHECK(same_bytes(state_of(*session), expected));
        }
}

TEST_CASE("an error of the observer ends the prefill, and the session goes on") {
    const auto model = tiny_model();
    const auto session = session_of(model, {.chunk_tokens = 16, .block_tokens = 1000});
    session->observe_layers([](std::uint32_t layer, std::uint64_t) -> Status {
        if (layer == 1) return fail(Errc::peer, "the peer has left");
        return {};
    });
    const Status status = session->prefill(some_tokens(38), engine::Logits::none, {});
    REQUIRE_FALSE(status.has_value());
    CHECK(status.error().message == "the peer has left");
    session->observe_layers({});
    must(session->truncate(0));
    CHECK((prefill(*session, some_tokens(38)) == prefill(*session_of(model), some_tokens(38))));
}

TEST_CASE("K and V that do not fit their type, or are no numbers, are errors that name the place") {
    for (const auto& [target, factor] : {std::pair(Target::k, 1e6F), {Target::v, 1e6F}, {Target::v, NAN}}) {
        const auto scaled = scaled_model(1, target, factor);
        const auto here = session_of(scaled->model, {.on_device = false, .kv_dtype = DType::f16});
        const Status expected = here->prefill(some_tokens(20), engine::Logits::none, {});
        REQUIRE_FALSE(expected.has_value());
        const std::string place = expected.error().message.substr(0, expected.error().message.find(':'));
        for (const std::uint64_t block : {0, 1000}) {
            const auto session =
                session_of(scaled->model, {.kv_dtype = DType::f16, .chunk_tokens = 16, .block_tokens = block});
            std::uint32_t seen = 0;
            session->observe_layers([&](std::uint32_t, std::uint64_t) -> Status { return ++seen, Status{}; });
            const Status status = session->prefill(some_tokens(20), engine::Logits::none, {});
            CHECK(error_of(status).code == Errc::bad_input);
            CHECK(has(error_of(status), place));
            CHECK(has(error_of(status), "layer 1, "));
            CHECK(seen <= 1);
        }
    }
    const auto scaled = scaled_model(0, Target::v, NAN);
    const auto eager = session_of(scaled->model, {.exec = engine::Exec::eager});
    CHECK_FALSE(eager->prefill(some_tokens(5), engine::Logits::none, {}).has_value());
}
