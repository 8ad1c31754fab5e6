// The grammar of codecs, and the presets.
#include "quant/spec.h"

#include "unit/quant/support.h"

using namespace hetero;
using namespace hetero::test;
using quant::Axis;
using quant::DType;
using quant::Params;
using quant::parse_spec;

namespace {

quant::Spec spec(std::string_view text) {
    auto parsed = parse_spec(text);
    REQUIRE_MESSAGE(parsed.has_value(), parsed.error().message);
    return *parsed;
}

std::string error(std::string_view text) {
    const auto parsed = parse_spec(text);
    REQUIRE_FALSE(parsed.has_value());
    CHECK(parsed.error().code == Errc::usage);
    return parsed.error().message;
}

}  // namespace

TEST_CASE("words set what they name, in any order; the rest is the codec's default") {
    CHECK(spec("int8") == quant::Spec{"int8", {}});
    CHECK(spec("f16") == quant::Spec{"f16", {}});
    const Params wanted{Axis::channel, 32, false, DType::f32, false};
    CHECK(spec("int4:channel:g32:asym:f32") == quant::Spec{"int4", wanted});
    CHECK(spec("int4:f32:asym:g32:channel") == quant::Spec{"int4", wanted});
    CHECK(spec("had:int6:token:sym").params == Params{Axis::token, 0, true, DType::f16, true});
    CHECK(spec("compat:q8_0") == quant::Spec{"compat:q8_0", {}});
    CHECK(spec("compat:lmdeploy4").params.symmetric == false);
    CHECK(spec("compat:vllm_fp8").params.axis == Axis::tensor);
    CHECK(spec("fp8_e4m3fn:head").params.axis == Axis::head);
}

TEST_CASE("what is printed is read as the same") {
    int specs = 0;
    for (const quant::Codec* codec : quant::codecs()) {
        const quant::Spec plain{std::string(codec->name()), codec->default_params()};
        CHECK(spec(quant::to_text(plain)) == plain);
        if (!codec->has_options()) continue;
        for (const Axis axis : {Axis::token, Axis::channel, Axis::head, Axis::tensor}) {
            for (const std::uint32_t group : {0U, 1U, 32U, 4096U}) {
                for (const bool symmetric : {true, false}) {
                    for (const DType scale : {DType::f16, DType::f32}) {
                        for (const bool hadamard : {true, false}) {
                            const quant::Spec one{plain.codec, {axis, group, symmetric, scale, hadamard}};
                            CHECK(spec(quant::to_text(one)) == one);
                            ++specs;
                        }
                    }
                }
            }
        }
    }
    CHECK(specs > 500);
    CHECK(quant::to_text(spec("had:int4:g32:asym")) == "had:int4:token:g32:asym");
    CHECK(quant::to_text(spec("bf16")) == "bf16");
}

TEST_CASE("a word that is wrong is named, with the nearest that is right") {
    CHECK(contains(error("int9"), "did you mean int"));
    CHECK(contains(error("fp8_e4m3"), "did you mean fp8_e4m3fn"));
    CHECK(contains(error("compat:q80"), "did you mean compat:q8_0"));
    CHECK(contains(error("int8:chanel:g32"), "'chanel' is no option of a codec; did you mean channel?"));
    CHECK(contains(error("int8:assym"), "did you mean asym?"));
    CHECK(contains(error("int8:g"), "'g'"));
    CHECK(contains(error("int8:g0"), "'g0'"));
    CHECK(contains(error("int8:g32x"), "'g32x'"));
    CHECK(contains(error("int8:g99999999999"), "'g99999999999'"));
    CHECK(contains(error("int8:"), "''"));
    CHECK(contains(error("int8::asym"), "''"));
    CHECK(contains(error(""), "unknown codec ''"));
    CHECK(contains(error("had:had:int8"), "unknown codec 'had'"));
    CHECK(contains(error("int8:token:channel"), "says again"));
    CHECK(contains(error("int8:sym:asym"), "says again"));
    CHECK(contains(error("f16:token"), "f16 takes no options"));
    CHECK(contains(error("had:bf16"), "bf16 takes no options"));
    CHECK(contains(error("compat:q8_0:g32"), "takes no options"));
    CHECK_FALSE(contains(error("int8:\x1b[2J"), "\x1b"));
}

TEST_CASE("presets name codecs that fit common heads") {
    for (const quant::Preset& preset : quant::presets()) {
        CAPTURE(preset.name);
        for (const std::string_view text : {preset.k, preset.v}) {
            CHECK(quant::to_text(spec(text)) == text);
            for (const std::uint32_t head_dim : {64U, 80U, 96U, 128U})
                CHECK(codec(spec(text).codec).check(spec(text).params, head_dim).has_value());
        }
        CHECK(quant::find_preset(preset.name)->k == preset.k);
        if (!preset.alias.empty()) CHECK(quant::find_preset(preset.alias)->name == preset.name);
    }
    CHECK(quant::find_preset("hk8")->v == "had:int8:token");
    const auto unknown = quant::find_preset("int4-acurate");
    REQUIRE_FALSE(unknown.has_value());
    CHECK(contains(unknown.error().message, "did you mean int4-accurate"));
}
