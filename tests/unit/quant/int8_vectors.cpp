// int8 on vectors that can be checked by hand.
#include "unit/quant/support.h"

using namespace hetero;
using namespace hetero::test;
using quant::Axis;
using quant::DType;
using quant::Params;
using quant::Shape;

namespace {

Params params(Axis axis, std::uint32_t group, bool symmetric, DType scale = DType::f16) {
    Params out;
    out.axis = axis;
    out.group = group;
    out.symmetric = symmetric;
    out.scale_dtype = scale;
    return out;
}

}  // namespace

TEST_CASE("codes are rounded half to even") {
    const std::vector<float> x64{0, 1, -1, .5F, 1.5F, 2.5F, -.5F, 127, -127};
    std::vector<float> x;
    for (float v : x64) x.push_back(v / 64);
    for (Axis axis : {Axis::token, Axis::channel}) {
        const Params p = params(axis, 9, true);
        const Shape shape = axis == Axis::token ? Shape{1, 1, 9} : Shape{9, 1, 1};
        const quant::Encoded encoded = encode("int8", p, shape, x);
        CHECK(scales(p, encoded.scale) == std::vector<float>{1.0F / 64});
        CHECK(codes(p, encoded) == std::vector<int>{0, 1, -1, 0, 2, 2, 0, 127, -127});
    }
}

TEST_CASE("asymmetric codes count from the smallest value") {
    // z = -1, s = 1
    const std::vector<float> x{-1, 0, .5F, 1.5F, 254};
    const Params p = params(Axis::token, 0, false);
    const quant::Encoded encoded = encode("int8", p, {1, 1, 5}, x);
    CHECK(codes(p, encoded) == std::vector<int>{0, 1, 2, 2, 255});
    CHECK(scales(p, encoded.scale) == std::vector<float>{1});
    CHECK(scales(p, encoded.zero) == std::vector<float>{-1});
    CHECK(decode("int8", p, {1, 1, 5}, encoded) == std::vector<float>{-1, 0, 1, 1, 254});
}

TEST_CASE("rounding the parameters outward keeps the error at half a step, where rounding to nearest does not") {
    std::vector<float> x;
    for (int i = 0; i < 256; ++i) x.push_back(static_cast<float>(100.02 + i / 255.0));
    const Params p = params(Axis::token, 0, false);
    const Shape shape{1, 1, 256};
    const quant::Encoded encoded = encode("int8", p, shape, x);
    const float scale = scales(p, encoded.scale).at(0);
    CHECK(scales(p, encoded.zero).at(0) == 100.0F);
    CHECK(scale == doctest::Approx(0.004).epsilon(0.001));
    CHECK(scale * 255 >= x.back() - 100.0F);
    const std::vector<float> back = decode("int8", p, shape, encoded);
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::fabs(back[i] - x[i]) <= scale / 2 + 2 * ulp(x[i] + 100));
}

TEST_CASE("a head size that is no multiple of the group: no group crosses a head, the tail has its own scale") {
    std::vector<float> x;
    for (int token = 0; token < 3; ++token) {
        x.insert(x.end(), 80, 1.0F);
        x.insert(x.end(), 80, 1000.0F);
    }
    const Shape shape{3, 2, 80};
    for (bool symmetric : {true, false}) {
        for (std::uint32_t group : {32U, 64U, 80U, 1U, 0U}) {
            const Params p = params(Axis::token, group, symmetric);
            const quant::Encoded encoded = encode("int8", p, shape, x);
            const std::size_t groups = group == 0 ? 1 : (80 + group - 1) / group;
            CHECK(codec("int8").groups(p, shape) == groups);
            CHECK(encoded.scale.size() == 3 * 2 * groups * 2);
            CHECK(encoded.zero.size() == (symmetric ? 0 : encoded.scale.size()));
            const std::vector<float> back = decode("int8", p, shape, encoded);
            for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::fabs(back[i] - x[i]) <= (x[i] == 1 ? 0.004F : 4.0F));
        }
    }
    const Status too_large = codec("int8").check(params(Axis::token, 128, true), 80);
    REQUIRE_FALSE(too_large.has_value());
    CHECK(too_large.error().code == Errc::usage);
    CHECK(contains(too_large.error().message, "1 to 80"));
    CHECK_FALSE(codec("int8").check(params(Axis::channel, 0, true), 80).has_value());
    CHECK_FALSE(codec("int8").check(params(Axis::token, 32, true, DType::bf16), 80).has_value());
}

TEST_CASE("groups of zeros come back as exact zeros and leave the others alone") {
    std::vector<float> x(6 * 2 * 64);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i + 1));
    std::vector<float> zeroed = x;
    for (std::size_t t = 0; t < 6; ++t)
        std::fill_n(zeroed.begin() + static_cast<std::ptrdiff_t>((t * 2 + 1) * 64), 64, 0.0F);  // head 1
    std::fill_n(zeroed.begin() + 3 * 128, 128, -0.0F);                                          // token 3
    const Shape shape{6, 2, 64};
    for (bool symmetric : {true, false}) {
        for (DType scale : {DType::f16, DType::f32}) {
            const Params p = params(Axis::token, 32, symmetric, scale);
            const quant::Encoded a = encode("int8", p, shape, x), b = encode("int8", p, shape, zeroed);
            const std::vector<float> back = decode("int8", p, shape, b);
            const auto scale_a = scales(p, a.scale), scale_b = scales(p, b.scale);
            for (std::size_t i = 0; i < x.size(); ++i) {
                if (zeroed[i] == 0) {
                    CHECK(back[i] == 0);
                    CHECK_FALSE(std::signbit(back[i]));
                    CHECK(scale_b[i / 32] == 0);
                } else {
                    CHECK(a.values[i] == b.values[i]);
                    CHECK(scale_a[i / 32] == scale_b[i / 32]);
                }
            }
            const Params channel = params(Axis::channel, 4, symmetric, scale);
            const std::vector<float> by_channel =
                decode("int8", channel, shape, encode("int8", channel, shape, zeroed));
            for (std::size_t i = 0; i < x.size(); ++i) {
                CHECK(std::isfinite(by_channel[i]));
                if (i % 128 >= 64) CHECK(by_channel[i] == 0);  // head 1 is zero throughout
            }
        }
    }
}

TEST_CASE("a group too small for nearest rounding still has a scale") {
    const std::vector<float> x(64, 1e-7F);
    const Params p = params(Axis::token, 0, true);
    const quant::Encoded encoded = encode("int8", p, {1, 1, 64}, x);
    CHECK(scales(p, encoded.scale).at(0) == 0x1p-24F);  // 1e-7 / 127 rounds to 0 otherwise
    CHECK(std::fabs(decode("int8", p, {1, 1, 64}, encoded).at(0) - 1e-7F) <= 0x1p-25F);
    const std::vector<float> tiny{0x1p-149F, 0x1.8p-140F};  // with f32 scales as well
    const Params wide = params(Axis::token, 0, true, DType::f32);
    CHECK(scales(wide, encode("int8", wide, {1, 1, 2}, tiny).scale).at(0) > 0);
}

TEST_CASE("what cannot be stored is refused with its place, whatever the axis") {
    for (const Params& p : {params(Axis::token, 32, true), params(Axis::token, 0, false),
                            params(Axis::channel, 8, true), params(Axis::channel, 3, false, DType::f32)}) {
        for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
            std::vector<float> x(10 * 2 * 64, 0.25F);
            x[5 * 128 + 64 + 7] = bad;
            x[9 * 128] = bad;  // a later one
            CHECK(contains(refusal("int8", p, {10, 2, 64}, x), "token 5, head 1, dim 7: value "));
            CHECK(contains(refusal("int8", p, {10, 2, 64, 1000}, x), "token 1005, head 1, dim 7"));
        }
    }
    std::vector<float> x(4 * 2 * 64, 1.0F);
    x[2 * 128 + 64 + 9] = 127 * 65504.0F + 8;
    for (Axis axis : {Axis::token, Axis::channel}) {
        const std::string message = refusal("int8", params(axis, 32, true), {4, 2, 64}, x);
        CHECK(contains(message, "token 2, head 1, dim 9"));
        CHECK(contains(message, "f32 scales"));
        CHECK(codec("int8").encode(params(axis, 32, true, DType::f32), {4, 2, 64}, x).has_value());
    }
    x[2 * 128 + 64 + 9] = 127 * 65504.0F;  // the last one that fits
    CHECK(codec("int8").encode(params(Axis::token, 32, true), {4, 2, 64}, x).has_value());
    x[2 * 128 + 64 + 9] = -65505.0F;  // the zero does not fit
    CHECK(contains(refusal("int8", params(Axis::token, 32, false), {4, 2, 64}, x), "f32 scales"));
    CHECK(codec("int8").encode(params(Axis::token, 32, false, DType::f32), {4, 2, 64}, x).has_value());
    // a range wider than f32
    CHECK(
        contains(refusal("int8", params(Axis::token, 0, false, DType::f32), {1, 1, 2}, {-3e38F, 3e38F}), "beyond f32"));
}

TEST_CASE("the largest f32 values do not decode to infinity") {
    const float largest = std::numeric_limits<float>::max();
    const Params p = params(Axis::token, 0, true, DType::f32);
    for (float x : {largest, std::nextafter(largest, 0.0F), largest / 2, 3.0e38F, 3.3e38F}) {
        const std::vector<float> values{x, -x, 1.0F};
        for (float back : decode("int8", p, {1, 1, 3}, encode("int8", p, {1, 1, 3}, values)))
            CHECK(std::isfinite(back));
    }
}

TEST_CASE("stored scales that no encoder writes are refused, as are sizes that do not fit") {
    const Params p = params(Axis::token, 0, false);
    std::vector<float> out(128);
    const std::vector<std::byte> values(128);
    auto bytes = [](std::vector<std::uint16_t> words) {
        std::vector<std::byte> raw(2 * words.size());
        std::memcpy(raw.data(), words.data(), raw.size());
        return raw;
    };
    const Shape shape{2, 1, 64};
    CHECK(codec("int8").decode(p, shape, values, bytes({0x3C00, 0}), bytes({0, 0xBC00}), out).has_value());
    for (std::uint16_t bad : {0x7C00, 0x7E00, 0xBC00}) {
        const Status status = codec("int8").decode(p, shape, values, bytes({0x3C00, bad}), bytes({0, 0}), out);
        REQUIRE_FALSE(status.has_value());
        CHECK(status.error().code == Errc::bad_input);
        CHECK(contains(status.error().message, "token 1, head 0, dim 0"));
    }
    CHECK_FALSE(codec("int8").decode(p, shape, values, bytes({0x3C00, 0}), bytes({0, 0xFC00}), out).has_value());
    CHECK_FALSE(codec("int8").decode(p, shape, values, bytes({0x3C00}), bytes({0, 0}), out).has_value());
    CHECK_FALSE(codec("int8").decode(p, shape, values, bytes({0x3C00, 0}), {}, out).has_value());
    CHECK_FALSE(codec("int8")
                    .decode(p, shape, std::span(values).first(127), bytes({0x3C00, 0}), bytes({0, 0}), out)
                    .has_value());
}
