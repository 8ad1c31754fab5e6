// Half precision against exact rational rounding (testdata/golden/numfmt), and known values.
#include <bit>
#include <cmath>

#include "kernels/api/ops.h"
#include "support/golden.h"

using namespace hetero::kernels;
using hetero::test::Golden;

namespace {

std::vector<const Ops*> runnable() {
    std::vector<const Ops*> list;
    for (const Ops* const* b = all_backends(); *b; ++b)
        if (backend_supported(**b)) list.push_back(*b);
    return list;
}

bool is_nan16(std::uint16_t h, std::uint16_t infinity) { return (h & 0x7fff) > infinity; }

}  // namespace

TEST_CASE("every binary16 number widens exactly") {
    const auto expected = Golden("golden/numfmt/numfmt.safetensors").get<std::uint32_t>("fp16_to_fp32_bits");
    REQUIRE(expected.size() == 65536);
    std::vector<std::uint16_t> halves(65536);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    for (const Ops* ops : runnable()) {
        INFO(ops->name);
        std::vector<float> wide(halves.size());
        ops->f16_to_f32(halves.data(), wide.data(), halves.size());
        std::vector<std::uint16_t> back(halves.size());
        ops->f32_to_f16(wide.data(), back.data(), wide.size());
        std::size_t wrong = 0, not_back = 0;
        for (std::size_t i = 0; i < halves.size(); ++i) {
            if (is_nan16(halves[i], 0x7c00)) {
                wrong += !std::isnan(wide[i]) || std::signbit(wide[i]) != (i >= 0x8000);
                not_back += !is_nan16(back[i], 0x7c00);
            } else {
                wrong += std::bit_cast<std::uint32_t>(wide[i]) != expected[i];
                not_back += back[i] != halves[i];
            }
        }
        CHECK(wrong == 0);
        CHECK(not_back == 0);
    }
}

TEST_CASE("every bfloat16 number widens exactly and comes back") {
    std::vector<std::uint16_t> halves(65536);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    for (const Ops* ops : runnable()) {
        INFO(ops->name);
        std::vector<float> wide(halves.size());
        ops->bf16_to_f32(halves.data(), wide.data(), halves.size());
        std::vector<std::uint16_t> back(halves.size());
        ops->f32_to_bf16(wide.data(), back.data(), wide.size());
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < halves.size(); ++i) {
            wrong += std::bit_cast<std::uint32_t>(wide[i]) != static_cast<std::uint32_t>(i) << 16;
            wrong += is_nan16(halves[i], 0x7f80) ? !is_nan16(back[i], 0x7f80) : back[i] != halves[i];
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("rounding to 16 bits is to nearest even") {
    const Golden golden("golden/numfmt/numfmt.safetensors");
    const auto bits = golden.get<std::uint32_t>("in_fp32_bits");
    const auto f16 = golden.get<std::uint16_t>("out_fp16"), bf16 = golden.get<std::uint16_t>("out_bf16");
    std::vector<float> in(bits.size());
    for (std::size_t i = 0; i < bits.size(); ++i) in[i] = std::bit_cast<float>(bits[i]);
    for (const Ops* ops : runnable()) {
        INFO(ops->name);
        std::vector<std::uint16_t> a(in.size()), b(in.size());
        ops->f32_to_f16(in.data(), a.data(), in.size());
        ops->f32_to_bf16(in.data(), b.data(), in.size());
        std::size_t wrong_f16 = 0, wrong_bf16 = 0;
        for (std::size_t i = 0; i < in.size(); ++i) {
            wrong_f16 += std::isnan(in[i]) ? !is_nan16(a[i], 0x7c00) : a[i] != f16[i];
            wrong_bf16 += std::isnan(in[i]) ? !is_nan16(b[i], 0x7f80) : b[i] != bf16[i];
        }
        CHECK(wrong_f16 == 0);
        CHECK(wrong_bf16 == 0);
    }
}

TEST_CASE("binary16 at its edges") {
    const std::vector<float> in = {65519, 65520, 5.9604645e-8F, 2.98e-8F, -0.0F, 65504, -65520, 6.1035156e-5F, 1};
    const std::vector<std::uint16_t> expected = {0x7bff, 0x7c00, 0x0001, 0x0000, 0x8000,
                                                 0x7bff, 0xfc00, 0x0400, 0x3c00};
    for (const Ops* ops : runnable()) {
        INFO(ops->name);
        std::vector<std::uint16_t> out(in.size());
        ops->f32_to_f16(in.data(), out.data(), in.size());
        CHECK(out == expected);
    }
}

TEST_CASE("a fine ramp rounds to the nearer neighbour") {
    std::vector<float> in(100001);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(5.0 * static_cast<double>(i) / 100000);
    for (const Ops* ops : runnable()) {
        INFO(ops->name);
        std::vector<std::uint16_t> half(in.size());
        ops->f32_to_f16(in.data(), half.data(), in.size());
        std::vector<std::uint16_t> below(in.size()), above(in.size());
        for (std::size_t i = 0; i < in.size(); ++i) {
            below[i] = static_cast<std::uint16_t>(half[i] ? half[i] - 1 : 0);
            above[i] = static_cast<std::uint16_t>(half[i] + 1);
        }
        std::vector<float> mid(in.size()), low(in.size()), high(in.size());
        ops->f16_to_f32(half.data(), mid.data(), in.size());
        ops->f16_to_f32(below.data(), low.data(), in.size());
        ops->f16_to_f32(above.data(), high.data(), in.size());
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < in.size(); ++i) {
            const float error = std::fabs(in[i] - mid[i]);
            const float other = std::min(std::fabs(in[i] - low[i]), std::fabs(in[i] - high[i]));
            wrong += half[i] == 0 ? error > 0x1p-25F : error > other || (error == other && half[i] % 2 != 0);
        }
        CHECK(wrong == 0);
    }
}
