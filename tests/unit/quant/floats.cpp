// The codecs that store floats: f32, f16, bf16.
#include <bit>

#include "support/golden.h"
#include "unit/quant/support.h"

using namespace hetero;
using namespace hetero::test;
using quant::Params;
using quant::Shape;

namespace {

std::vector<std::uint16_t> stored16(std::string_view name, const std::vector<float>& x) {
    return as<std::uint16_t>(encode(name, {}, {x.size(), 1, 1}, x).values);
}

}  // namespace

TEST_CASE("values on which a library's own conversion failed are rounded to nearest even") {
    CHECK(stored16("f16", {0.24995F, 0.49995F, 0.99985F, 1.9996F}) ==
          std::vector<std::uint16_t>{0x3400, 0x3800, 0x3C00, 0x4000});
    CHECK(stored16("f16", {65519.0F, 5.9604645e-8F, 2.98e-8F, -0.0F}) ==
          std::vector<std::uint16_t>{0x7BFF, 0x0001, 0x0000, 0x8000});
    // 5 i / 100000: none may be halved, whatever its neighbours
    std::vector<float> x;
    for (int i = 0; i <= 100000; ++i) x.push_back(static_cast<float>(5.0 * i / 100000));
    const std::vector<float> back = decode("f16", {}, {x.size(), 1, 1}, encode("f16", {}, {x.size(), 1, 1}, x));
    int wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        if (std::fabs(back[i] - x[i]) > codec("f16").error_bound({}, x[i], x[i])) ++wrong;
    }
    CHECK(wrong == 0);
}

TEST_CASE("16-bit floats equal the golden conversions wherever they are finite") {
    const Golden golden("golden/numfmt/numfmt.safetensors");
    const auto bits = golden.get<std::uint32_t>("in_fp32_bits");
    for (const std::string name : {"f16", "bf16"}) {
        const auto expected = golden.get<std::uint16_t>("out_" + std::string(name == "f16" ? "fp16" : "bf16"));
        const std::uint16_t special = name == "f16" ? 0x7C00 : 0x7F80;
        std::vector<float> x;
        std::vector<std::uint16_t> want;
        int refused = 0;
        for (std::size_t i = 0; i < bits.size(); ++i) {
            const float value = std::bit_cast<float>(bits[i]);
            if ((expected[i] & special) == special) {
                CHECK_FALSE(codec(name).encode({}, {1, 1, 1}, std::vector{value}).has_value());
                ++refused;
            } else {
                x.push_back(value);
                want.push_back(expected[i]);
            }
        }
        CHECK(refused > 0);
        CHECK(x.size() > 10000);
        CHECK(stored16(name, x) == want);
    }
}

TEST_CASE("what cannot be stored is refused with its place and a remedy") {
    std::vector<float> x(2 * 3 * 4 * 10, 1.0F);
    const Shape shape{20, 3, 4};
    x[5 * 12 + 1 * 4 + 2] = 65520.0F;
    const std::string message = refusal("f16", {}, shape, x);
    CHECK(contains(message, "token 5, head 1, dim 2"));
    CHECK(contains(message, "65520"));
    CHECK(contains(message, "bf16"));
    CHECK(codec("bf16").encode({}, shape, x).has_value());
    // a range of a part: token numbers go on from its first token
    CHECK(contains(refusal("f16", {}, {20, 3, 4, 100}, x), "token 105, head 1, dim 2"));

    for (const char* name : {"f32", "f16", "bf16"}) {
        for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
            std::vector<float> y(shape.elements(), 0.5F);
            y[7 * 12 + 2 * 4 + 3] = bad;
            const std::string text = refusal(name, {}, shape, y);
            CHECK(contains(text, "token 7, head 2, dim 3"));
            CHECK(contains(text, std::isnan(bad) ? "nan" : "inf"));
        }
    }
    CHECK(contains(refusal("bf16", {}, {1, 1, 1}, {3.4e38F}), "f32"));
}

TEST_CASE("decoding gives every stored pattern back, NaN and infinity too, from any address") {
    std::vector<std::uint16_t> words;
    for (int bits = 0; bits < 65536; ++bits) words.push_back(static_cast<std::uint16_t>(bits));
    const Shape shape{512, 2, 64};
    for (const char* name : {"f16", "bf16"}) {
        std::vector<std::byte> bytes(1 + 2 * words.size());
        std::memcpy(bytes.data() + 1, words.data(), 2 * words.size());
        std::vector<float> out(words.size());
        REQUIRE(codec(name).decode({}, shape, std::span(bytes).subspan(1), {}, {}, out).has_value());
        int wrong = 0;
        for (int bits = 0; bits < 65536; ++bits) {
            const float want = std::string_view(name) == "f16"
                                   ? kernels::f16_value(static_cast<std::uint16_t>(bits))
                                   : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
            const float got = out[static_cast<std::size_t>(bits)];
            const bool equal = std::isnan(want)
                                   ? std::isnan(got)
                                   : std::bit_cast<std::uint32_t>(want) == std::bit_cast<std::uint32_t>(got);
            if (!equal) ++wrong;
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("sizes that do not fit, and parameters that a float codec does not have, are refused") {
    std::vector<std::byte> bytes(8);
    std::vector<float> out(4);
    CHECK(codec("f16").decode({}, {4, 1, 1}, bytes, {}, {}, out).has_value());
    CHECK_FALSE(codec("f16").decode({}, {5, 1, 1}, bytes, {}, {}, out).has_value());
    CHECK_FALSE(codec("f16").decode({}, {4, 1, 1}, std::span(bytes).first(7), {}, {}, out).has_value());
    CHECK_FALSE(codec("f16").decode({}, {4, 1, 1}, bytes, bytes, {}, out).has_value());
    CHECK_FALSE(codec("f16").decode({}, {1ULL << 62, 4, 4}, bytes, {}, {}, out).has_value());  // wraps to 0 elements
    Params grouped;
    grouped.group = 32;
    for (const char* name : {"f32", "f16", "bf16"}) {
        const Status status = codec(name).check(grouped, 64);
        REQUIRE_FALSE(status.has_value());
        CHECK(status.error().code == Errc::usage);
        CHECK(encode(name, {}, {0, 2, 64}, {}).values.empty());
    }
}

TEST_CASE("the registry finds what it lists, and only that") {
    CHECK(quant::codec_names().starts_with("f32, f16, bf16, int8, "));
    for (const quant::Codec* entry : quant::codecs()) {
        CHECK(quant::find_codec(entry->name()) == entry);
        CHECK(quant::codec_names().find(entry->name()) != std::string::npos);
    }
    CHECK(quant::find_codec("int9") == nullptr);
    CHECK(quant::find_codec("") == nullptr);
}
