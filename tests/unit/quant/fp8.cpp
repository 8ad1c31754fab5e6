// 8-bit floats on vectors that can be checked by hand, all codes, and golden conversions.
#include "quant/fp8.h"

#include <bit>

#include "support/golden.h"
#include "unit/quant/support.h"

using namespace hetero;
using namespace hetero::test;
using kernels::Fp8;

namespace {

int code_of(Fp8 format, float x) {
    const float scale = 1;
    std::uint8_t code = 0;
    kernels::ops().quantize_fp8(format, {kernels::DType::f32, &x, 1, 1, 1}, &scale, &code, 1, nullptr);
    return code;
}
float value_of(Fp8 format, int code) {
    const float scale = 1;
    const auto byte = static_cast<std::uint8_t>(code);
    float x = 0;
    const bool finite =
        kernels::ops().dequantize_fp8(format, &byte, 1, &scale, {kernels::DType::f32, &x, 1, 1, 1}, nullptr);
    CHECK(finite == std::isfinite(x));
    return x;
}

}  // namespace

TEST_CASE("e4m3fn: saturation, ties to even, subnormals, zero's sign, NaN") {
    const auto code = [](float x) { return code_of(Fp8::e4m3fn, x); };
    for (float x : {448.0F, 464.0F, 480.0F, 1e9F, std::numeric_limits<float>::infinity()}) CHECK(code(x) == 0x7E);
    CHECK(value_of(Fp8::e4m3fn, code(17)) == 16);
    CHECK(value_of(Fp8::e4m3fn, code(19)) == 20);
    CHECK(code(240) == 0x77);
    CHECK(code(.0625F) == 0x18);
    CHECK(code(0x1p-9F) == 0x01);
    CHECK(code(0x1p-10F) == 0);
    CHECK(code(1.5F * 0x1p-10F) == 0x01);
    CHECK(value_of(Fp8::e4m3fn, code(.3F)) == .3125F);
    CHECK(code(-0.0F) == 0x80);
    CHECK(code(std::numeric_limits<float>::quiet_NaN()) == 0x7F);
}

TEST_CASE("e5m2 and e4m3fnuz") {
    CHECK(code_of(Fp8::e5m2, 57344) == 0x7B);
    CHECK(code_of(Fp8::e5m2, 61440) == 0x7B);
    CHECK(code_of(Fp8::e5m2, 0x1p-16F) == 0x01);
    CHECK(code_of(Fp8::e5m2, 0x1p-17F) == 0);
    CHECK(code_of(Fp8::e5m2, 1.5F * 0x1p-17F) == 0x01);
    // bias 8: half of e4m3fn's value for the same bits; one zero; NaN is 80
    CHECK(code_of(Fp8::e4m3fnuz, 240) == 0x7F);
    CHECK(code_of(Fp8::e4m3fnuz, 1e9F) == 0x7F);
    CHECK(code_of(Fp8::e4m3fnuz, 1) == 0x40);
    CHECK(code_of(Fp8::e4m3fnuz, 0x1p-10F) == 0x01);
    CHECK(code_of(Fp8::e4m3fnuz, -0.0F) == 0);
    CHECK(code_of(Fp8::e4m3fnuz, -0x1p-12F) == 0);
    CHECK(code_of(Fp8::e4m3fnuz, std::numeric_limits<float>::quiet_NaN()) == 0x80);
}

TEST_CASE("every code decodes and comes back") {
    for (const Fp8 format : {Fp8::e4m3fn, Fp8::e4m3fnuz, Fp8::e5m2}) {
        int nans = 0, infinities = 0;
        for (int code = 0; code < 256; ++code) {
            const float x = value_of(format, code);
            if (std::isnan(x)) {
                ++nans;
                CHECK(std::isnan(value_of(format, code_of(format, x))));
            } else if (std::isinf(x)) {
                ++infinities;
            } else {
                CHECK(code_of(format, x) == code);
                CHECK(std::fabs(x) <= quant::fp8_info(format).largest);
            }
        }
        CHECK(nans == (format == Fp8::e4m3fn ? 2 : format == Fp8::e5m2 ? 6 : 1));
        CHECK(infinities == (format == Fp8::e5m2 ? 2 : 0));
    }
}

TEST_CASE("conversions checked against exact rounding") {
    const Golden golden("golden/numfmt/numfmt.safetensors");
    for (const auto& [format, values, saturated] : {std::tuple{Fp8::e4m3fn, "e4m3fn_to_fp32_bits", "out_e4m3_sat"},
                                                    {Fp8::e5m2, "e5m2_to_fp32_bits", "out_e5m2_sat"}}) {
        const auto table = golden.get<std::uint32_t>(values);
        int wrong = 0;
        for (int code = 0; code < 256; ++code) {
            const float want = std::bit_cast<float>(table[static_cast<std::size_t>(code)]),
                        got = value_of(format, code);
            wrong += std::isnan(want) ? !std::isnan(got)
                                      : std::bit_cast<std::uint32_t>(got) != std::bit_cast<std::uint32_t>(want);
        }
        CHECK(wrong == 0);
        const auto inputs = golden.get<std::uint32_t>("in_fp32_bits");
        const auto codes = golden.get<std::uint8_t>(saturated);
        REQUIRE(inputs.size() > 20000);
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            const float x = std::bit_cast<float>(inputs[i]);
            const int got = code_of(format, x);
            wrong += std::isnan(x) ? !std::isnan(value_of(format, got)) : got != codes[i];
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("the largest value of a group becomes the largest code, and what has no scale of its own saturates") {
    std::vector<float> x(64, 0.25F);
    x[9] = -700;
    quant::Params p;
    for (const char* name : {"fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2"}) {
        CAPTURE(name);
        const auto encoded = encode(name, p, {1, 1, 64}, x);
        const auto largest = as<std::uint8_t>(encoded.values)[9];
        CHECK(largest == (std::string_view(name) == "fp8_e4m3fn" ? 0xFE
                          : std::string_view(name) == "fp8_e5m2" ? 0xFB
                                                                 : 0xFF));
        CHECK(std::fabs(decode(name, p, {1, 1, 64}, encoded)[9] + 700) <= 700 * 0x1p-10);  // the scale is rounded up
    }
    const quant::Params fixed = codec("compat:vllm_fp8").default_params();
    const auto encoded = encode("compat:vllm_fp8", fixed, {1, 1, 64}, x);
    CHECK(decode("compat:vllm_fp8", fixed, {1, 1, 64}, encoded)[9] == -448);
    CHECK(as<float>(encoded.scale) == std::vector<float>{1});
    p.axis = quant::Axis::channel;
    p.group = 32;
    CHECK_FALSE(codec("fp8_e4m3fn").check(p, 64).has_value());
    CHECK_FALSE(codec("compat:vllm_fp8").check({}, 64).has_value());
}
