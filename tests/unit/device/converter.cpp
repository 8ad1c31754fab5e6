// States converted on a device: the bytes and the report of the CPU.
#include <limits>

#include "emulation/emulation.h"
#include "engine/device/state_converter.h"
#include "kv/integrity.h"
#include "unit/kv/sinks.h"

using namespace hetero;
using namespace hetero::test;
using engine::StateConverter;
using kv::PartId;

namespace {

engine::Device emulated(std::uint64_t memory_bytes = 0) { return {&kernels::emulated_ops(), 1, memory_bytes}; }

std::unique_ptr<StateConverter> converter(std::uint64_t memory_bytes = 0) {
    auto made = StateConverter::create(emulated(memory_bytes));
    REQUIRE_MESSAGE(made.has_value(), made.error().message);
    return std::move(*made);
}

struct Converted {
    kv::State state;
    Result<kv::ConvertReport> report = fail(Errc::internal, "not run");
};
Converted convert(const kv::State& state, const kv::Scheme& k, const kv::Scheme& v, kv::TokenConverter* elsewhere,
                  bool requantize = false) {
    Converted out;
    KeepingSink sink(out.state);
    const auto source = kv::memory_source(std::make_shared<const kv::State>(state), "in.h5");
    const std::size_t n = state.header.k_schemes.size();
    out.report = kv::convert_state(*source, sink, std::vector(n, k), std::vector(n, v), requantize,
                                   {"kv-quantize", "1", "quantize"}, 2, kv::Handing::shared, elsewhere);
    return out;
}

Digest root_of(const kv::State& state) {
    kv::Header header = state.header;
    header.tokens_per_chunk = kv::choose_tokens_per_chunk(header);
    std::vector<std::vector<kv::LayerChecksums>> tables;
    for (const auto& layers : state.layers) {
        auto& table = tables.emplace_back();
        for (const kv::Layer& layer : layers) table.push_back(kv::checksum_layer(header, layer));
    }
    return kv::root_digest(header, tables);
}

// With the parts that the device is to have converted.
void check_same(const kv::State& state, const kv::Scheme& k, const kv::Scheme& v, StateConverter& device,
                std::uint64_t elsewhere, bool requantize = false) {
    const Converted wanted = convert(state, k, v, nullptr, requantize), got = convert(state, k, v, &device, requantize);
    REQUIRE_MESSAGE(wanted.report.has_value(), wanted.report.error().message);
    REQUIRE_MESSAGE(got.report.has_value(), got.report.error().message);
    CHECK(root_of(got.state) == root_of(wanted.state));
    CHECK(got.report->bytes_in == wanted.report->bytes_in);
    CHECK(got.report->bytes_out == wanted.report->bytes_out);
    CHECK(got.report->max_abs_error == wanted.report->max_abs_error);
    CHECK(std::string(got.report->parts.text()) == wanted.report->parts.text());
    CHECK(wanted.report->elsewhere == 0);
    CHECK(got.report->elsewhere == elsewhere);
}

Plan plan_of(std::vector<std::uint64_t> lengths, const char* type = "f16") {
    Plan plan;
    plan.head_dim_k = 64;
    plan.head_dim_v = 80;
    plan.lengths = std::move(lengths);
    plan.k = plan.v = plain_scheme(type);
    return plan;
}

kv::Scheme from(const std::string& spec, const char* type, std::uint32_t sinks = 0, std::uint32_t window = 0) {
    kv::Scheme scheme = spec_scheme(spec, sinks, window);
    scheme.source_dtype = plain_scheme(type).source_dtype;
    return scheme;
}

}  // namespace

TEST_CASE("a state converted on a device, and back, has the bytes, root and errors of the CPU") {
    for (const bool late : {false, true}) {
        emulation::Settings settings = emulation::settings();
        settings.late = late;
        settings.strict_host = !late;
        settings.order = late ? emulation::Order::shuffled : emulation::Order::backward;
        const emulation::Configured configured(settings);
        const auto device = converter(128 << 10);  // pieces of a few hundred tokens
        for (const std::string type : {"f16", "bf16", "f32"}) {
            if (late && type != "f16") continue;
            const kv::State state = make_state(plan_of({400, 1, 33}, type.c_str()));
            for (const char* spec : {"int8", "int8:token:g16:asym", "int4:channel:g32:asym", "had:int4:token:g16",
                                     "fp8_e4m3fn", "int8:channel:g7", "wf5:channel:g64:asym"}) {
                CAPTURE(type);
                CAPTURE(spec);
                const kv::Scheme coded = from(spec, type.c_str()), v = from("had:int8:token", type.c_str());
                check_same(state, coded, v, *device, 12);
                const Converted there = convert(state, coded, v, nullptr);
                for (const char* back : {"f16", "f32"})
                    check_same(there.state, plain_scheme(back), plain_scheme("bf16"), *device, 12);
            }
        }
    }
}

TEST_CASE("tokens that are kept as they are stay so beside those that a device converts") {
    const auto device = converter();
    const kv::State state = make_state(plan_of({200, 3}));
    check_same(state, from("int4:channel:g32:asym", "f16", 4, 17), from("int8", "f16", 0, 5), *device, 8);
    const Converted there = convert(state, from("int8", "f16", 4, 17), from("had:int8:token", "f16", 1, 0), nullptr);
    check_same(there.state, plain_scheme("f16"), plain_scheme("f32"), *device, 8);
}

TEST_CASE("what a device has no kernel for the CPU converts, and the report counts it") {
    const auto device = converter();
    const kv::State state = make_state(plan_of({70}));
    for (const char* spec : {"int6", "int8:head", "had:int4:channel:g32", "compat:q8_0", "int8:token:g48"}) {
        CAPTURE(spec);
        if (!quant::find_codec(spec_scheme(spec).codec)->check(spec_scheme(spec).params, 64)) continue;
        check_same(state, from(spec, "f16"), from("int8", "f16"), *device, 2);
    }
    kv::Scheme wide = from("int8", "f16");
    wide.params.scale_dtype = kv::DType::f32;
    check_same(state, wide, plain_scheme("bf16"), *device, 0);
    const Converted there = convert(state, from("int8", "f16"), from("int8", "f16"), nullptr);
    check_same(there.state, from("int4", "f16"), from("int8", "f16"), *device, 0, true);
    // A group for which there is no room.
    const auto small = converter(128 << 10);
    check_same(make_state(plan_of({2000})), from("int8:channel:g2000", "f16"), from("int8", "f16"), *small, 2);
}

TEST_CASE("what cannot be converted is said in the words of the CPU, and the device goes on") {
    const auto device = converter(128 << 10);
    const kv::State good = make_state(plan_of({700}, "f32"));
    const kv::Scheme int8 = from("int8", "f32"), rotated = from("had:int8:token", "f32");
    for (const float bad : {NAN, std::numeric_limits<float>::infinity(), 1e9F}) {
        kv::State state = good;
        const std::size_t at = (std::size_t{650} * 2 + 1) * 80 + 7;  // token 650, head 1, dim 7
        std::memcpy(state.layers[0][1].v.values.bytes.data() + 4 * at, &bad, sizeof bad);
        const Converted wanted = convert(state, int8, rotated, nullptr);
        const Converted got = convert(state, int8, rotated, device.get());
        REQUIRE_FALSE(wanted.report.has_value());
        REQUIRE_FALSE(got.report.has_value());
        CHECK(got.report.error().message == wanted.report.error().message);
        CHECK(got.report.error().message.find("token 650") != std::string::npos);
        CHECK(got.report.error().code == Errc::bad_input);
    }
    const Converted coded = convert(good, int8, rotated, nullptr);
    for (const std::uint16_t scale : {0x8401, 0x7C00, 0x7E00, 0xFC00}) {  // negative, infinite, NaN
        kv::State state = coded.state;
        std::memcpy(state.layers[0][0].k.scale.bytes.data() + 100, &scale, sizeof scale);
        const Converted wanted = convert(state, plain_scheme("f16"), plain_scheme("f16"), nullptr);
        const Converted got = convert(state, plain_scheme("f16"), plain_scheme("f16"), device.get());
        REQUIRE_FALSE(wanted.report.has_value());
        REQUIRE_FALSE(got.report.has_value());
        CHECK(got.report.error().message == wanted.report.error().message);
    }
    check_same(good, int8, rotated, *device, 4);
}

TEST_CASE("a converter takes what it may of the device, and gives it back") {
    CHECK(emulation::usage().bytes == 0);
    {
        const auto device = converter(1 << 20);
        CHECK(emulation::usage().bytes <= 1 << 20);
        check_same(make_state(plan_of({500})), from("int8", "f16"), from("int8", "f16"), *device, 4);
    }
    const auto refused = StateConverter::create(emulated(1000));
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Errc::resource);
    CHECK(refused.error().message.find("1000 are allowed") != std::string::npos);
    for (int after = 0;; ++after) {
        emulation::fail_allocation(after);
        const auto made = StateConverter::create(emulated());
        emulation::fail_allocation(-1);
        if (made) break;
        CHECK(made.error().code == Errc::resource);
        CHECK(after < 10);
    }
    CHECK(emulation::usage().allocations == 0);
    CHECK(emulation::usage().locked_bytes == 0);
}
