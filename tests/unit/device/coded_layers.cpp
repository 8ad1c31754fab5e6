// Layers that a device hands out in codes: the bytes and errors of converting what it hands out as it is.
#include <thread>

#include "kv/convert.h"
#include "kv/precision_plan.h"
#include "support.h"

using namespace hetero;
using namespace hetero::test;
using kv::PartId;

namespace {

kv::Scheme scheme_of(const char* spec, DType source, std::uint32_t sinks = 0, std::uint32_t window = 0) {
    return kv::scheme_from_spec(must(quant::parse_spec(spec)), sinks, window, source);
}

engine::LayerSchemes all_layers(const model::Model& model, const kv::Scheme& k, const kv::Scheme& v) {
    return {std::vector(model.config.n_layers, k), std::vector(model.config.n_layers, v)};
}

bool same_arrays(const kv::Layer& a, const kv::Layer& b) {
    for (const PartId part : {PartId::k, PartId::v})
        for (const auto array : kv::part_arrays) {
            const kv::Tensor &one = a.part(part).*array, &other = b.part(part).*array;
            if (one.dtype != other.dtype || one.shape != other.shape || one.bytes != other.bytes) return false;
        }
    return a.k.scheme == b.k.scheme && a.v.scheme == b.v.scheme;
}

// Layer by layer what `session` keeps as floats, converted here.
std::vector<engine::CodedLayer> converted(const Session& session, const engine::LayerSchemes& schemes) {
    std::vector<engine::CodedLayer> out;
    const kv::Header header = header_of(session);
    for (std::uint32_t layer = 0; layer < session.model().config.n_layers; ++layer) {
        const kv::Layer plain = must(session.export_layer(layer));
        engine::CodedLayer& coded = out.emplace_back();
        for (const PartId id : {PartId::k, PartId::v}) {
            const kv::Part& part = plain.part(id);
            const std::uint64_t n = part.values.shape[0];
            coded.layer.part(id) = part.scheme == schemes.of(layer, id)
                                       ? part
                                       : must(kv::convert_part(header, part, schemes.of(layer, id), n, id,
                                                               session.position() - n, 1, coded.max_abs_error));
        }
    }
    return out;
}

struct Case {
    const char *k, *v;
    std::uint32_t parts_on_device, sinks = 0, window = 0;
};
constexpr Case cases[] = {{"int8", "int8", 2},
                          {"int4:channel:g32:asym", "had:int8:token", 2, 4, 9},
                          {"fp8_e4m3fn", "int6", 1},
                          {"wf8", "had:int8:token:asym", 2, 4, 0},
                          {"f16", "had:int4:token:asym", 1, 3, 0}};

}  // namespace

TEST_CASE("layers leave a device in the codes of the codecs, while later ones are computed") {
    emulation::Settings settings = emulation::settings();
    settings.late = true;
    const emulation::Configured configured(settings);
    for (const std::string name : {"llama3_rope/bf16", "mistral_swa/bf16", "deepseek_v2/bf16"}) {
        const auto model = tiny_model(name);
        const auto prompt = some_tokens(75), other = some_tokens(40, 3);
        for (const Case& one : cases) {
            CAPTURE(name);
            CAPTURE(one.k);
            const auto schemes = all_layers(*model, scheme_of(one.k, DType::f16, one.sinks, one.window),
                                            scheme_of(one.v, DType::f16, one.sinks, one.window));
            const auto plain = session_of(model, {.kv_dtype = DType::f16});
            prefill(*plain, prompt);
            const auto expected = converted(*plain, schemes);
            for (const std::string tiers : {"device", "k=host"})
                for (const std::uint64_t block : {0, 32}) {  // several blocks
                    if (tiers != "device" && name != "llama3_rope/bf16") continue;
                    const auto session = session_of(model, {.kv_dtype = DType::f16,
                                                            .tiers = tiers,
                                                            .chunk_tokens = 16,
                                                            .block_tokens = block,
                                                            .hand_out = schemes});
                    REQUIRE(session->codes_layers());
                    std::vector<engine::CodedLayer> seen(model->config.n_layers);
                    session->observe_layers([&](std::uint32_t layer, std::uint64_t end) -> Status {
                        std::thread reader([&] { seen[layer] = must(session->export_coded(layer, end)); });
                        reader.join();
                        return {};
                    });
                    prefill(*session, other);
                    must(session->truncate(0));
                    must(session->prefill(prompt, engine::Logits::none, {}, [](std::uint64_t) {}));
                    for (std::size_t layer = 0; layer < seen.size(); ++layer) {
                        CHECK(seen[layer].parts_on_device == one.parts_on_device);
                        CHECK(seen[layer].max_abs_error == expected[layer].max_abs_error);
                        CHECK(same_arrays(seen[layer].layer, expected[layer].layer));
                    }
                    // Each once: what is taken again is coded here.
                    const auto again = must(session->export_coded(0, prompt.size()));
                    CHECK(again.parts_on_device == 0);
                    CHECK(again.max_abs_error == expected[0].max_abs_error);
                    CHECK(same_arrays(again.layer, expected[0].layer));
                    CHECK(same_bytes(state_of(*session), state_of(*plain)));
                }
        }
    }
}

TEST_CASE("what the device has no kernel for is left to the codecs") {
    const auto model = tiny_model();
    const kv::Scheme int8 = scheme_of("int8", DType::f16), int6 = scheme_of("int6", DType::f16);
    CHECK(session_of(model, {.kv_dtype = DType::f16, .hand_out = all_layers(*model, int8, int6)})->codes_layers());
    for (const Wanted& wanted : {Wanted{.kv_dtype = DType::f16, .hand_out = all_layers(*model, int6, int6)},
                                 Wanted{.kv_dtype = DType::f32, .hand_out = all_layers(*model, int8, int8)},
                                 Wanted{.on_device = false, .hand_out = all_layers(*model, int8, int8)},
                                 Wanted{.kv_dtype = DType::f16,
                                 .codecs = must(engine::resident_codecs("int8")),
                                 .hand_out = all_layers(*model, int8, int8)},
                                 Wanted{.kv_dtype = DType::f16}})
        CHECK_FALSE(session_of(model, wanted)->codes_layers());
}

TEST_CASE("a value that has no code is said as the codec says it, and the prefill is what it is") {
    const auto scaled = scaled_model(1, Target::k, 1e9F);
    const kv::Scheme int8 = scheme_of("int8", DType::bf16);
    const auto schemes = all_layers(*scaled->model, int8, int8);
    const auto session = session_of(scaled->model, {.kv_dtype = DType::bf16, .hand_out = schemes});
    std::vector<Status> read;
    session->observe_layers([&](std::uint32_t layer, std::uint64_t end) -> Status {
        const auto coded = session->export_coded(layer, end);
        read.push_back(coded ? Status{} : Status(tl::unexpected<Error>(coded.error())));
        return {};
    });
    prefill(*session, some_tokens(20));
    REQUIRE(read.size() == scaled->model->config.n_layers);
    CHECK(read[0].has_value());
    REQUIRE_FALSE(read[1].has_value());
    CHECK(error_of(read[1]).code == Errc::bad_input);
    CHECK(has(error_of(read[1]), "layer 1, K: token "));
    CHECK(has(error_of(read[1]), "needs a scale beyond f16"));
}

TEST_CASE("the memory to code in is part of what a session says that it takes") {
    const auto model = tiny_model();
    const kv::Scheme int8 = scheme_of("int8", DType::f16);
    const auto needs = [&](const engine::LayerSchemes& schemes) {
        const Error error =
            error_of(try_session(model, {.kv_dtype = DType::f16, .device_memory = 1, .hand_out = schemes}));
        return std::stoull(error.message.substr(error.message.find("needs ") + 6));
    };
    const auto schemes = all_layers(*model, int8, int8);
    CHECK(needs(schemes) > needs({}));
    const std::size_t before = emulation::usage().bytes;
    const auto session =
        session_of(model, {.kv_dtype = DType::f16, .device_memory = needs(schemes), .hand_out = schemes});
    session->observe_layers([](std::uint32_t, std::uint64_t) { return Status{}; });
    prefill(*session, some_tokens(40));
    CHECK(emulation::usage().bytes - before <= needs(schemes));
}
