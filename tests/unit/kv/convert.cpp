// Conversion of whole states: bytes, reports, refusals, and independence of the number of threads.
#include "kv/convert.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include "base/threads.h"
#include "sinks.h"

using namespace hetero;
using namespace hetero::test;
using kv::DType;
using kv::PartId;
using quant::Axis;

namespace {

// Counts threads, too.
class Capture final : public KeepingSink {
public:
    Capture() : KeepingSink(state) {}
    Status write_layer(const kv::Layer& layer) override {
        threads = 0;
        for ([[maybe_unused]] const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) ++threads;
        return KeepingSink::write_layer(layer);
    }

    kv::State state;
    int threads = 0;  // of the process at the last layer
};

Result<kv::ConvertReport> convert(const kv::State& state, Capture& out, const kv::Scheme& k, const kv::Scheme& v,
                                  int threads = 1, bool requantize = false) {
    const auto source = kv::memory_source(std::make_shared<const kv::State>(state), "in.h5");
    return kv::convert_state(*source, out, k, v, requantize, {"kv-quantize", "1", "quantize"}, threads);
}

Plan long_plan() {
    Plan plan;
    plan.head_dim_k = 64;
    plan.head_dim_v = 80;
    plan.lengths = {1300, 1, 33};
    return plan;
}

std::vector<float> values_of(const kv::State& state, std::size_t sequence, std::size_t layer, PartId id) {
    auto values = kv::decode_part(state.header, state.layers[sequence][layer].part(id),
                                  state.header.sequences[sequence].tokens.size(), id);
    REQUIRE_MESSAGE(values.has_value(), values.error().message);
    return *values;
}

}  // namespace

TEST_CASE("a conversion stores what encoding each part at once stores, with any number of threads") {
    const kv::State state = make_state(long_plan());
    for (const kv::Scheme& scheme :
         {int8_scheme(Axis::token, 32, true), int8_scheme(Axis::token, 0, false, DType::f32),
          int8_scheme(Axis::channel, 32, false), int8_scheme(Axis::channel, 7, true), plain_scheme("bf16"),
          plain_scheme("f32"), spec_scheme("int4:channel:g32:asym"), spec_scheme("had:int6:token"),
          spec_scheme("int3:head"), spec_scheme("int2:token"), spec_scheme("int5:channel:g32:asym"),
          spec_scheme("fp8_e4m3fn:tensor"), spec_scheme("compat:q4_0"), spec_scheme("compat:lmdeploy4")}) {
        CAPTURE(scheme.codec);
        CAPTURE(scheme.params.group);
        for (int threads : {1, 2, 5}) {
            Capture out;
            const auto report = convert(state, out, scheme, plain_scheme("f16"), threads);
            REQUIRE_MESSAGE(report.has_value(), report.error().message);
            CHECK(out.committed);
            double largest = 0;
            std::uint64_t bytes_out = 0, values = 0;
            for (std::size_t s = 0; s < state.layers.size(); ++s) {
                for (std::size_t l = 0; l < state.layers[s].size(); ++l) {
                    const std::vector<float> x = values_of(state, s, l, PartId::k);
                    const auto whole =
                        kv::encode_part(state.header, scheme, state.header.sequences[s].tokens.size(), PartId::k, x);
                    REQUIRE(whole.has_value());
                    const kv::Part& got = out.state.layers[s][l].k;
                    CHECK(got.values.bytes == whole->values.bytes);
                    CHECK(got.scale.bytes == whole->scale.bytes);
                    CHECK(got.zero.bytes == whole->zero.bytes);
                    CHECK(got.values.shape == whole->values.shape);
                    CHECK(got.scale.shape == whole->scale.shape);
                    CHECK(got.scheme == out.state.header.k_schemes[l]);
                    const std::vector<float> y = values_of(out.state, s, l, PartId::k);
                    for (std::size_t i = 0; i < x.size(); ++i)
                        largest = std::max(largest, std::fabs(double{x[i]} - y[i]));
                    // V keeps its scheme: bit for bit
                    CHECK(out.state.layers[s][l].v.values.bytes == state.layers[s][l].v.values.bytes);
                    for (PartId id : {PartId::k, PartId::v}) {
                        const kv::Part& part = out.state.layers[s][l].part(id);
                        bytes_out += part.values.bytes.size() + part.scale.bytes.size() + part.zero.bytes.size();
                        values += x.size() / 64 * state.header.identity.head_dim(id);
                    }
                }
            }
            CHECK(report->max_abs_error == largest);
            CHECK(report->bytes_in == state.header.payload_bytes());
            CHECK(report->bytes_out == bytes_out);
            CHECK(report->bits_per_value ==
                  doctest::Approx(8.0 * static_cast<double>(bytes_out) / static_cast<double>(values)));
            CHECK(report->exact() == (scheme.codec == "f32"));
            CHECK((report->max_abs_error == 0) == (scheme.codec == "f32"));
            CHECK(report->seconds > 0);
        }
    }
}

TEST_CASE("the header says what was done") {
    Plan plan = long_plan();
    plan.tokens_per_chunk = 1024;
    const kv::State state = make_state(plan);
    kv::Scheme k = int8_scheme(Axis::channel, 7, true);
    k.source_dtype = DType::f32;  // what the caller says does not count
    Capture out;
    REQUIRE(convert(state, out, k, plain_scheme("bf16")).has_value());
    const kv::Header& header = out.state.header;
    CHECK(header.tokens_per_chunk == 0);  // 1024 is no multiple of 7
    CHECK(header.provenance.size() == state.header.provenance.size() + 1);
    CHECK(header.provenance.back().what == "quantize");
    CHECK(kv::compare(header.identity, state.header.identity).empty());
    for (const kv::Scheme& scheme : header.k_schemes) {
        CHECK(scheme.codec == "int8");
        CHECK(scheme.params == k.params);
        CHECK(scheme.source_dtype == DType::f16);
    }
    for (const kv::Scheme& scheme : header.v_schemes) CHECK(scheme.source_dtype == DType::bf16);
}

TEST_CASE("int8 and back to f16 stays within half a step of the original") {
    const kv::State state = make_state(long_plan());
    Capture quantized, back;
    const kv::Scheme scheme = int8_scheme(Axis::token, 32, true);
    REQUIRE(convert(state, quantized, scheme, scheme).has_value());
    REQUIRE(convert(quantized.state, back, plain_scheme("f16"), plain_scheme("f16")).has_value());
    CHECK(back.state.header.k_schemes[0].source_dtype == DType::f16);
    for (PartId id : {PartId::k, PartId::v}) {
        const auto x = values_of(state, 0, 1, id), y = values_of(back.state, 0, 1, id);
        double largest = 0;
        for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::fabs(double{x[i]} - y[i]));
        CHECK(largest > 0);
        CHECK(largest <= 4.0 / 127 / 2 * 1.001 + 4 * 0x1p-11);  // |x| <= 4: half an int8 step, half an f16 step
    }
}

TEST_CASE("quantizing what is quantized is refused, unless it is asked for or nothing changes") {
    const kv::State state = make_state(long_plan());
    const kv::Scheme first = int8_scheme(Axis::token, 32, true), second = int8_scheme(Axis::channel, 32, false);
    Capture quantized;
    REQUIRE(convert(state, quantized, first, plain_scheme("f16")).has_value());

    Capture refused;
    const auto error = convert(quantized.state, refused, second, plain_scheme("f16"));
    REQUIRE_FALSE(error.has_value());
    CHECK(error.error().code == Errc::usage);
    CHECK(error.error().message.find("layer 0, K") != std::string::npos);
    CHECK(refused.layers == 0);
    CHECK_FALSE(refused.committed);

    Capture again;
    REQUIRE(convert(quantized.state, again, second, plain_scheme("f16"), 1, true).has_value());
    CHECK(again.state.header.k_schemes[0].source_dtype == DType::f16);
    Capture same;
    const auto report = convert(quantized.state, same, first, plain_scheme("f16"));
    REQUIRE(report.has_value());
    CHECK(report->exact());
    CHECK(report->max_abs_error == 0);
    CHECK(same.state.layers[0][1].k.values.bytes == quantized.state.layers[0][1].k.values.bytes);
}

TEST_CASE("kept tokens come back bit for bit, the others as those after them quantized alone") {
    const kv::State state = make_state(long_plan());
    const kv::Scheme scheme = spec_scheme("int4:channel:g32:asym", 4, 10), plain = spec_scheme("int4:channel:g32:asym");
    Capture out;
    const auto report = convert(state, out, scheme, plain_scheme("f16"));
    REQUIRE_MESSAGE(report.has_value(), report.error().message);
    CHECK(report->bytes_out == out.state.header.payload_bytes());
    CHECK_FALSE(report->exact());
    CHECK(report->max_abs_error > 0);
    constexpr std::size_t row = 2 * 64;
    for (std::size_t s = 0; s < state.layers.size(); ++s) {
        const std::vector<float> x = values_of(state, s, 1, PartId::k), y = values_of(out.state, s, 1, PartId::k);
        const std::size_t n = state.header.sequences[s].tokens.size(), sinks = std::min<std::size_t>(4, n),
                          tail = std::min<std::size_t>(10, n - sinks), middle = n - sinks - tail;
        const auto at = [](const std::vector<float>& v, std::size_t token) {
            return v.begin() + static_cast<std::ptrdiff_t>(token * row);
        };
        CHECK(std::equal(at(x, 0), at(x, sinks), y.begin()));
        CHECK(std::equal(at(x, n - tail), x.end(), at(y, n - tail)));
        const auto alone = kv::encode_part(state.header, plain, middle, PartId::k, {at(x, sinks), at(x, n - tail)});
        REQUIRE(alone.has_value());
        const kv::Part& part = out.state.layers[s][1].k;
        CHECK(part.values.bytes == alone->values.bytes);
        CHECK(part.scale.bytes == alone->scale.bytes);
        CHECK(part.zero.bytes == alone->zero.bytes);
        CHECK(part.sink.bytes.size() == 2 * row * sinks);
        CHECK(part.tail.bytes.size() == 2 * row * tail);
    }
    Capture back;  // and to a float again: exactly what was stored
    REQUIRE(convert(out.state, back, plain_scheme("f32"), plain_scheme("f32")).has_value());
    CHECK(values_of(back.state, 0, 1, PartId::k) == values_of(out.state, 0, 1, PartId::k));
}

TEST_CASE("what cannot be converted is refused with sequence, layer, part and place, and nothing is committed") {
    Plan plan = long_plan();
    plan.k = plan.v = plain_scheme("bf16");
    for (int threads : {1, 4}) {
        for (const auto& [value, what] : {std::pair{70000.0F, "70144"},
                                          {std::numeric_limits<float>::infinity(), "inf"},
                                          {std::numeric_limits<float>::quiet_NaN(), "nan"}}) {
            kv::State state = make_state(plan);
            const std::size_t row = 2 * 80;
            auto put = [&](std::size_t index, float x) {
                const auto bits = std::bit_cast<std::uint32_t>(x);
                const auto word = static_cast<std::uint16_t>((bits + 0x7FFF) >> 16);
                std::memcpy(state.layers[0][1].v.values.bytes.data() + 2 * index, &word, 2);
            };
            put(1205 * row + 80 + 7, value);
            put(1299 * row, value);  // a later range
            Capture out;
            const auto error = convert(state, out, plain_scheme("f16"), plain_scheme("f16"), threads);
            REQUIRE_FALSE(error.has_value());
            CHECK(error.error().code == Errc::bad_input);
            const std::string& message = error.error().message;
            CAPTURE(message);
            CHECK(message.find("in.h5: sequence prompt 0, layer 1, V: token 1205, head 1, dim 7: value ") == 0);
            CHECK(message.find(what) != std::string::npos);
            CHECK_FALSE(out.committed);
            CHECK(out.aborted == message);
        }
    }
}

TEST_CASE("schemes that do not exist are refused before anything is written") {
    const kv::State state = make_state(long_plan());
    kv::Scheme unknown = plain_scheme("f16");
    unknown.codec = "int9";
    for (const kv::Scheme& scheme :
         {unknown, int8_scheme(Axis::token, 81, true), int8_scheme(Axis::channel, 0, true)}) {
        Capture out;
        const auto error = convert(state, out, plain_scheme("f16"), scheme);
        REQUIRE_FALSE(error.has_value());
        CHECK(error.error().code == Errc::usage);
        CHECK(out.layers == 0);
    }
    Capture out;
    CHECK(convert(state, out, unknown, unknown).error().message.find("f32, f16, bf16, int8") != std::string::npos);
}

TEST_CASE("no number of threads is as many as the process may use") {
    const kv::State state = make_state(long_plan());
    int before = 0;
    for (const int threads : {1, 2, 0}) {
        Capture out;
        REQUIRE(convert(state, out, plain_scheme("f32"), plain_scheme("f32"), threads));
        if (threads == 1) before = out.threads;
        CHECK(out.threads == before - 1 + (threads == 0 ? default_thread_count() : threads));
    }
}

TEST_CASE("a sink that fails ends the conversion with its error") {
    const kv::State state = make_state(long_plan());
    Capture out;
    out.fail_at = 2;
    const auto error = convert(state, out, plain_scheme("f32"), plain_scheme("f32"));
    REQUIRE_FALSE(error.has_value());
    CHECK(error.error().message == "no room");
    CHECK(out.aborted == "no room");
    CHECK_FALSE(out.committed);
}

TEST_CASE("parts whose bytes do not fit their tokens are refused") {
    const kv::State state = make_state(long_plan());
    const kv::Part& part = state.layers[0][0].k;
    CHECK_FALSE(kv::decode_part(state.header, part, 1299, PartId::k).has_value());
    CHECK_FALSE(kv::decode_part(state.header, part, 1ULL << 60, PartId::k).has_value());
    CHECK_FALSE(kv::encode_part(state.header, plain_scheme("f16"), 3, PartId::k, std::vector<float>(5)).has_value());
}

TEST_CASE("a conversion says whether it was exact, lossy or a second quantization") {
    const auto check = [](const char* from, const char* to, bool exact, std::uint32_t sinks = 0) {
        CAPTURE(from);
        CAPTURE(to);
        Plan plan;
        plan.head_dim_k = plan.head_dim_v = 32;
        plan.lengths = {9};
        plan.k = plan.v = spec_scheme(from, quant::find_codec(quant::parse_spec(from)->codec)->quantized() ? sinks : 0);
        const kv::State state = make_state(plan);
        const kv::Scheme wanted = spec_scheme(to);
        CHECK(kv::conversion_is_exact(plan.k, wanted) == exact);
        Capture out;
        const bool from_quantized = quant::find_codec(plan.k.codec)->quantized(),
                   to_quantized = quant::find_codec(wanted.codec)->quantized();
        const bool again = from_quantized && to_quantized && !exact;
        const auto refused = convert(state, out, wanted, wanted);
        CHECK(refused.has_value() == !again);
        Capture allowed;
        const auto report = convert(state, allowed, wanted, wanted, 1, true);
        REQUIRE_MESSAGE(report.has_value(), report.error().message);
        CHECK(report->exact() == exact);
        CHECK(std::string(report->parts.text()) == (exact ? "exact" : again ? "requantized" : "lossy"));
        const auto& parts = report->parts;
        CHECK(parts.kept + parts.exact + parts.lossy + parts.requantized == 4);  // two layers, K and V
        if (exact) CHECK(report->max_abs_error == 0);
    };
    check("f16", "f16", true);
    check("f16", "f32", true);
    check("bf16", "f32", true);
    check("f16", "bf16", false);
    check("bf16", "f16", false);
    check("f16", "int8", false);
    check("int8", "f16", false);
    check("int8", "f32", true);
    check("int8", "int8", true);
    check("int8", "int4", false);
    check("int8", "int8:token:g16", false);
    check("int2", "f16", true);
    check("int2", "bf16", false);
    check("int2:asym", "f16", false);
    check("had:int2", "f16", false);
    check("compat:vllm_fp8", "f16", true);
    check("compat:vllm_fp8", "bf16", true);
    check("compat:q8_0", "f16", false);
    check("int2", "f16", true, 3);
    check("compat:vllm_fp8", "bf16", false, 3);  // the sinks are f16
}
