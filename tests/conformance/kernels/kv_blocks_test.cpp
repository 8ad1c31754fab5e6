// Blocks of the KV state: extremes, scales, codes and values. Every backend gives the bits of the scalar one, from and
// to every type; the scalar one is held to definitions written out here.
#include <string>

#include "conformance/kernels/kv_block.h"
#include "kernels/api/rounding.h"

using namespace hetero;
using namespace hetero::test;

namespace {

// Equal as numbers: the sign of a zero is left open.
bool all_equal(const Guarded<float>& a, const Guarded<float>& b, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
        if (!(a[i] == b[i])) return false;
    return true;
}

float value_for(Random& random, std::size_t row) {
    switch (row % 6) {
        case 0:
            return 0;
        case 1:
            return random.normal() * 1e-7F;  // subnormal in f16
        case 2:
            return -std::fabs(random.normal());
        case 3:
            return random.normal() * 4000;
        case 4:
            return 3.25F;
        default:
            return random.normal();
    }
}

}  // namespace

TEST_CASE("extremes of rows and columns, of every type") {
    Random random(31);
    for (const Ops* ops : runnable_backends())
        for (const DType type : kTypes)
            for (const std::size_t n : lengths())
                for (const std::size_t rows : {std::size_t{1}, std::size_t{2}, std::size_t{67}}) {
                    if (rows > 2 && n % 5 != 0) continue;
                    INFO(ops->name, " type ", static_cast<int>(type), " n ", n, " rows ", rows);
                    Block x(type, rows, n, 3, 1);
                    x.fill([&](std::size_t r, std::size_t) { return value_for(random, r); });
                    const bool f32 = type == DType::f32;
                    Guarded<float> min(std::max(rows, n), 1), max(std::max(rows, n), 2), want_min(min.size()),
                        want_max(min.size());
                    const auto check = [&](auto op, auto want, std::size_t count) {
                        REQUIRE(op(x.values(), min.data(), max.data()));
                        REQUIRE(want(x.values(), want_min.data(), want_max.data()));
                        CHECK(all_equal(min, want_min, count));
                        CHECK(all_equal(max, want_max, count));
                        REQUIRE(op(x.values(), nullptr, max.data()));
                        REQUIRE(want(x.values(), nullptr, want_max.data()));
                        CHECK(all_equal(max, want_max, count));
                        CHECK((min.intact() && max.intact()));
                    };
                    check(ops->min_max_rows, scalar().min_max_rows, rows);
                    check(ops->min_max_columns, scalar().min_max_columns, n);
                    for (std::size_t i = 0; i < n; i += n < 40 ? 1 : 13) {
                        const std::size_t row = i % rows, at = row * x.stride + i;
                        const float kept = x.get(row, i);
                        for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
                            x.set(at, bad);
                            CHECK_FALSE(ops->min_max_rows(x.values(), min.data(), max.data()));
                            CHECK_FALSE(ops->min_max_columns(x.values(), min.data(), max.data()));
                            CHECK_FALSE(ops->min_max_rows(x.values(), nullptr, max.data()));
                            CHECK_FALSE(ops->min_max_columns(x.values(), nullptr, max.data()));
                        }
                        x.set(at, f32 ? 3.4e38F : type == DType::f16 ? 65504.0F : 3.38e38F);  // the largest there is
                        CHECK(ops->min_max_rows(x.values(), min.data(), max.data()));
                        CHECK(ops->min_max_columns(x.values(), min.data(), max.data()));
                        x.set(at, kept);
                    }
                }
}

TEST_CASE("rows are copied and looked at, of every type") {
    Random random(34);
    for (const Ops* ops : runnable_backends())
        for (const DType type : kTypes)
            for (const std::size_t n : lengths())
                for (const std::size_t skew : {std::size_t{0}, std::size_t{1}}) {
                    // Without a skew, lines of 64 bytes are whole in the copy. What lies between rows is not finite.
                    constexpr std::size_t rows = 3;
                    INFO(ops->name, " type ", static_cast<int>(type), " n ", n, " skew ", skew);
                    const std::size_t size = type == DType::f32 ? 4 : 2,
                                      y_stride = skew == 0 ? (n + 31) / 32 * 32 : n + 1;
                    Block x(type, rows, n, 3, 1);
                    x.fill([&](std::size_t r, std::size_t i) { return value_for(random, r + i); });
                    Guarded<unsigned char> y(rows * y_stride * size, skew * size);
                    const auto copied = [&](bool finite) {
                        std::fill_n(y.data(), y.size(), static_cast<unsigned char>(0x5a));
                        CHECK(ops->copy_finite(x.values(), y.data(), y_stride) == finite);
                        for (std::size_t r = 0; r < rows; ++r) {
                            const unsigned char* row = y.data() + r * y_stride * size;
                            CHECK(std::memcmp(row, x.bytes.data() + r * x.stride * size, n * size) == 0);
                            const auto untouched = [](unsigned char byte) { return byte == 0x5a; };
                            CHECK(std::all_of(row + n * size, row + y_stride * size, untouched));
                        }
                        CHECK(y.intact());
                    };
                    copied(true);
                    for (std::size_t i = 0; i < n; i += n < 40 ? 1 : 13) {
                        const std::size_t row = i % rows, at = row * x.stride + i;
                        const float kept = x.get(row, i);
                        for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
                            x.set(at, bad);
                            copied(false);
                            CHECK_FALSE(scalar().copy_finite(x.values(), y.data(), y_stride));
                        }
                        for (const float sign : {1.0F, -1.0F}) {  // the largest there is
                            x.set(at, sign * (type == DType::f32 ? 3.4e38F : type == DType::f16 ? 65504.0F : 3.38e38F));
                            copied(true);
                        }
                        x.set(at, kept);
                    }
                }
}

TEST_CASE("the scalar extremes are those of the values") {
    Random random(32);
    Block x(DType::f16, 5, 40, 2, 0);
    x.fill([&](std::size_t, std::size_t) { return random.normal(); });
    float min[40], max[40], magnitude[40];
    REQUIRE(scalar().min_max_rows(x.values(), min, max));
    REQUIRE(scalar().min_max_rows(x.values(), nullptr, magnitude));
    for (std::size_t r = 0; r < 5; ++r) {
        float low = x.get(r, 0), high = low;
        for (std::size_t i = 0; i < 40; ++i) {
            low = std::min(low, x.get(r, i));
            high = std::max(high, x.get(r, i));
        }
        CHECK(min[r] == low);
        CHECK(max[r] == high);
        CHECK(magnitude[r] == std::max(-low, high));
    }
}

TEST_CASE("scales of groups are rounded up, zeros down, at every f16 and beside it") {
    // Multiples of every f16, and the numbers next to them: where rounding turns.
    std::vector<float> min, max;
    Random random(33);
    const auto add = [&](float low, float high) {
        min.push_back(std::min(low, high));
        max.push_back(std::max(low, high));
    };
    for (const int levels : {1, 3, 7, 15, 31, 63, 127, 255, 240, 448, 57344}) {
        min.clear();
        max.clear();
        for (std::uint32_t bits = 0; bits < 0x7C00; bits += 1 + bits % 5) {
            const float f16 = kernels::f16_value(static_cast<std::uint16_t>(bits));
            const float range = f16 * static_cast<float>(levels);
            for (const float high : {range, std::nextafter(range, 0.0F), std::nextafter(range, INFINITY)}) {
                if (!std::isfinite(high)) continue;
                add(0, high);
                add(-f16, high - f16);
                add(std::nextafter(f16, INFINITY), high + f16);
                add(std::nextafter(-f16, -INFINITY), high);
            }
        }
        for (const float special : {65504.0F, 65519.0F, 65520.0F, 1e-30F, 1e-45F, 3e38F}) {
            add(-special, special);
            add(0, special);
            add(-special, 0);
            add(-0.0F, special);
        }
        // A zero that is a multiple of the levels, and a little more: as much as binary64 keeps of it counts.
        for (const float scale : {0.0625F, 1.0F, 3.0F})
            for (int exponent = -70; exponent < 0 && scale * static_cast<float>(levels) < 65504; ++exponent)
                for (const float more : {1.0F, 1.25F, -1.0F})
                    add(-scale * static_cast<float>(levels), std::ldexp(more, exponent));
        for (int i = 0; i < 4000; ++i) {
            const float size = std::ldexp(1.0F, i % 60 - 40);
            add(random.normal() * size, random.normal() * (i % 3 == 0 ? size : 1));
        }
        const std::size_t n = min.size();
        std::vector<std::uint16_t> scale(n), zero(n), want_scale(n), want_zero(n);
        std::vector<float> magnitude(n);
        for (std::size_t i = 0; i < n; ++i) magnitude[i] = std::max(std::fabs(min[i]), std::fabs(max[i]));
        const bool fits = scalar().group_scales(min.data(), max.data(), n, levels, want_scale.data(), want_zero.data());
        CHECK_FALSE(fits);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const double z = kernels::f16_value(want_zero[i]), s = kernels::f16_value(want_scale[i]);
            if (std::isinf(z) || std::isinf(s)) continue;
            const double below =
                want_scale[i] == 0 ? -1 : kernels::f16_value(static_cast<std::uint16_t>(want_scale[i] - 1));
            wrong += !(z <= min[i] && s * levels >= max[i] - z && below * levels < max[i] - z);
        }
        CHECK(wrong == 0);
        for (const Ops* ops : runnable_backends()) {
            INFO(ops->name, " levels ", levels);
            CHECK(ops->group_scales(min.data(), max.data(), n, levels, scale.data(), zero.data()) == fits);
            CHECK(count_differing(scale, want_scale) == 0);
            CHECK(count_differing(zero, want_zero) == 0);
            CHECK(ops->group_scales(nullptr, magnitude.data(), n, levels, scale.data(), nullptr) ==
                  scalar().group_scales(nullptr, magnitude.data(), n, levels, want_scale.data(), nullptr));
            CHECK(count_differing(scale, want_scale) == 0);
            for (const std::size_t few : {std::size_t{1}, std::size_t{17}}) {  // all fit
                const float low[] = {-1, 0, 5, -1, 0, 5, -1, 0, 5, -1, 0, 5, -1, 0, 5, -1, 0},
                            high[] = {1, 0, 5, 1, 0, 5, 1, 0, 5, 1, 0, 5, 1, 0, 5, 1, 0};
                Guarded<std::uint16_t> s(few, 1), z(few, 3);
                CHECK(ops->group_scales(low, high, few, levels, s.data(), z.data()));
                CHECK((s.intact() && z.intact()));
            }
            scalar().group_scales(min.data(), max.data(), n, levels, want_scale.data(), want_zero.data());
        }
    }
}

TEST_CASE("codes and values of rows and columns, from and to every type") {
    Random random(34);
    for (const Ops* ops : runnable_backends())
        for (const DType type : kTypes)
            for (const std::size_t n : lengths())
                for (const std::size_t rows : {std::size_t{1}, std::size_t{3}, std::size_t{20}}) {
                    if (rows > 3 && n % 7 != 0 && n % 64 != 0) continue;
                    INFO(ops->name, " type ", static_cast<int>(type), " n ", n, " rows ", rows);
                    Block x(type, rows, n, 5, 1);
                    // Values within the codes of their scale: f16 scales, which have a way of their own, and others, to
                    // where their reciprocal is infinite.
                    const std::size_t count = std::max(rows, n), q_stride = n + 9;
                    for (const int kind : {0, 1, 2})
                        for (const bool is_signed : {true, false}) {
                            const bool with_zero = kind != 0;
                            Guarded<float> scale(count, 3), zero(count, 1);
                            const float one = kind == 2 ? 1e-38F : std::fabs(random.normal()) / 20 + 1e-3F;
                            for (std::size_t c = 0; c < count; ++c) {
                                scale[c] = c % 9 == 4 ? 0 : one * (1 + static_cast<float>(c % 4) / 16);
                                std::uint16_t half = 0;
                                scalar().f32_to_f16(&scale[c], &half, 1);
                                if (kind == 0) scale[c] = kernels::f16_value(half);
                                zero[c] = c % 2 == 0 || kind == 2 ? 0 : one * 3;
                            }
                            const float* z = with_zero ? zero.data() : nullptr;
                            x.fill([&](std::size_t, std::size_t) {
                                const double code = is_signed ? random.uniform(-115, 115) : random.uniform(7, 230);
                                return one * static_cast<float>(random.bits() % 4 == 0 ? std::floor(code) + 0.5 : code);
                            });
                            const auto check = [&](auto quantize, auto want_quantize, auto dequantize,
                                                   auto want_dequantize) {
                                Guarded<std::uint8_t> q(rows * q_stride, 5), want_q(rows * q_stride);
                                float error = 0.5F, want_error = 0.5F;
                                quantize(x.values(), scale.data(), z, is_signed, q.data(), q_stride, &error);
                                want_quantize(x.values(), scale.data(), z, is_signed, want_q.data(), q_stride,
                                              &want_error);
                                CHECK(count_differing(q, want_q) == 0);
                                CHECK(q.intact());
                                CHECK(error == want_error);
                                Guarded<std::uint8_t> again(rows * q_stride, 2);
                                quantize(x.values(), scale.data(), z, is_signed, again.data(), q_stride, nullptr);
                                CHECK(count_differing(again, want_q) == 0);
                                for (const DType to : kTypes) {
                                    Block y(to, rows, n, 2, 1), want(to, rows, n, 2, 1);
                                    error = want_error = 0;
                                    const bool fits =
                                        dequantize(q.data(), q_stride, is_signed, scale.data(), z, y.output(), &error);
                                    CHECK(fits == want_dequantize(q.data(), q_stride, is_signed, scale.data(), z,
                                                                  want.output(), &want_error));
                                    CHECK(fits);
                                    CHECK(count_differing(y.bytes, want.bytes) == 0);
                                    CHECK(y.bytes.intact());
                                    CHECK(error == want_error);
                                    Block streamed(to, rows, n, 0, 3), plain(to, rows, n, 0, 3);
                                    KvOutput out = streamed.output();
                                    out.streaming = true;
                                    CHECK(dequantize(q.data(), q_stride, is_signed, scale.data(), z, out, nullptr));
                                    want_dequantize(q.data(), q_stride, is_signed, scale.data(), z, plain.output(),
                                                    nullptr);
                                    CHECK(count_differing(streamed.bytes, plain.bytes) == 0);
                                    CHECK(streamed.bytes.intact());
                                }
                            };
                            check(ops->quantize_rows, scalar().quantize_rows, ops->dequantize_rows,
                                  scalar().dequantize_rows);
                            check(ops->quantize_columns, scalar().quantize_columns, ops->dequantize_columns,
                                  scalar().dequantize_columns);
                        }
                }
}

TEST_CASE("codes beside the middle of two integers are those of the division") {
    Random random(35);
    std::vector<float> scales{1.0F / 3, 1.0F / 127, 0.1F, 65504.0F, 0x1p-24F, 0x1p-130F, 1e-38F, 3e37F, 0x1p125F};
    for (int i = 0; i < 100; ++i) scales.push_back(std::ldexp(static_cast<float>(random.uniform(1, 2)), i % 60 - 30));
    for (const float scale : scales)
        for (const float zero : {0.0F, -17 * scale, 1.1F})
            for (const auto& [low, high] : {std::pair{-127, 127}, {0, 255}}) {
                std::vector<float> x;
                for (int code = low; code < high; ++code) {
                    const float tie = (static_cast<float>(code) + 0.5F) * scale + zero;
                    float around = std::nextafter(std::nextafter(std::nextafter(tie, -INFINITY), -INFINITY), -INFINITY);
                    for (int step = 0; step < 7; ++step, around = std::nextafter(around, INFINITY)) {
                        const float quotient = (around - zero) / scale;  // where zero is large, steps of x are, too
                        if (quotient > static_cast<float>(low) && quotient < static_cast<float>(high))
                            x.push_back(around);
                    }
                }
                if (x.empty() || !std::isfinite(x.front()) || !std::isfinite(x.back())) continue;
                // As one row, and as columns that all have this scale.
                const KvValues block{DType::f32, x.data(), 1, x.size(), x.size()};
                const std::vector<float> scale_of_all(x.size(), scale), zero_of_all(x.size(), zero);
                std::vector<std::uint8_t> got(x.size()), want(x.size());
                for (std::size_t i = 0; i < x.size(); ++i) {
                    const float code = std::nearbyint((x[i] - zero) / scale);
                    want[i] = static_cast<std::uint8_t>(
                        static_cast<int>(std::clamp(code, static_cast<float>(low), static_cast<float>(high))));
                }
                for (const Ops* ops : runnable_backends()) {
                    INFO(ops->name, " scale ", scale, " zero ", zero);
                    ops->quantize_rows(block, &scale, &zero, low < 0, got.data(), 0, nullptr);
                    CHECK(count_differing(got, want) == 0);
                    ops->quantize_columns(block, scale_of_all.data(), zero_of_all.data(), low < 0, got.data(), 0,
                                          nullptr);
                    CHECK(count_differing(got, want) == 0);
                }
            }
}

// Every value of 16 bits that a code of a scale can stand for, with scales from the smallest to the largest f16.
TEST_CASE("every f16 and bf16 gets the code of the division") {
    for (const DType type : {DType::f16, DType::bf16}) {
        std::vector<std::uint16_t> bits, x;
        std::vector<float> wide, all(0x10000);
        for (std::uint32_t i = 0; i < 0x10000; ++i) bits.push_back(static_cast<std::uint16_t>(i));
        (type == DType::f16 ? scalar().f16_to_f32 : scalar().bf16_to_f32)(bits.data(), all.data(), bits.size());
        std::vector<std::uint32_t> scales;
        for (std::uint32_t i = 1; i < 0x7C00; i += i < 64 ? 1 : 211) scales.push_back(i);
        for (const std::uint32_t scale_bits : scales) {
            const float scale = kernels::f16_value(static_cast<std::uint16_t>(scale_bits));
            x.clear();
            wide.clear();
            for (std::size_t i = 0; i < all.size(); ++i) {
                if (!(std::fabs(all[i]) <= 127 * scale)) continue;
                x.push_back(bits[i]);
                wide.push_back(all[i]);
            }
            std::vector<std::uint8_t> got(x.size()), columns(x.size()), want(x.size());
            for (std::size_t i = 0; i < x.size(); ++i)
                want[i] = static_cast<std::uint8_t>(static_cast<int>(std::nearbyint(wide[i] / scale)));
            const KvValues block{type, x.data(), 1, x.size(), x.size()};
            const std::vector<float> scale_of_all(x.size(), scale);
            for (const Ops* ops : runnable_backends()) {
                INFO(ops->name, " scale ", scale);
                ops->quantize_rows(block, &scale, nullptr, true, got.data(), 0, nullptr);
                CHECK(count_differing(got, want) == 0);
                ops->quantize_columns(block, scale_of_all.data(), nullptr, true, columns.data(), 0, nullptr);
                CHECK(count_differing(columns, want) == 0);
            }
        }
    }
}

TEST_CASE("a value that is infinite in its new type is told") {
    const std::uint8_t q[] = {1, 2, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255};
    for (const Ops* ops : runnable_backends())
        for (const std::size_t n : {std::size_t{3}, std::size_t{16}, std::size_t{18}}) {
            INFO(ops->name, " n ", n);
            const auto fits = [&](DType type, float scale) {
                Block y(type, 1, n, 0, 0);
                const std::vector<float> scales(n, scale);
                const bool row = ops->dequantize_rows(q, n, false, &scale, nullptr, y.output(), nullptr);
                CHECK(ops->dequantize_columns(q, n, false, scales.data(), nullptr, y.output(), nullptr) == row);
                return row;
            };
            CHECK(fits(DType::f16, 65519.0F / 255));
            CHECK_FALSE(fits(DType::f16, 65521.0F / 255));
            CHECK(fits(DType::bf16, 1.33e36F));
            CHECK_FALSE(fits(DType::bf16, 1.333e36F));
            CHECK(fits(DType::f32, 1.333e36F));
            CHECK_FALSE(fits(DType::f32, 1.34e36F));
        }
}

TEST_CASE("the largest difference, and copies past the caches") {
    Random random(36);
    for (const Ops* ops : runnable_backends())
        for (const std::size_t n : lengths()) {
            INFO(ops->name, " n ", n);
            for (const DType type : kTypes) {
                Block x(type, 3, n, 4, 1);
                x.fill([&](std::size_t, std::size_t) { return random.normal(); });
                std::vector<float> y(3 * n);
                for (std::size_t i = 0; i < y.size(); ++i) y[i] = x.get(i / n, i % n) + (i == y.size() - 1 ? 2.0F : 0);
                float error = 0, want = 0;
                ops->max_difference(x.values(), y.data(), &error);
                scalar().max_difference(x.values(), y.data(), &want);
                CHECK(error == want);
                CHECK(std::fabs(error - 2) < 1e-5F);
            }
            for (const std::size_t skew : {0, 1, 33}) {
                Guarded<std::uint8_t> from(3 * n, 5), to(3 * n, skew);
                for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>(random.bits());
                ops->copy_streaming(to.data(), from.data(), from.size());
                CHECK(count_differing(to, from) == 0);
                CHECK(to.intact());
            }
        }
}

TEST_CASE("rows encoded in one: as extremes, scales and codes one after the other") {
    Random random(51);
    for (const Ops* ops : runnable_backends())
        for (const DType type : kTypes)
            for (const std::size_t n : lengths())
                for (const bool asymmetric : {false, true})
                    for (const int levels : {127, 7, 1}) {
                        if (n > 40 && n % 32 != 0 && levels != 127) continue;
                        const std::size_t rows = 75;
                        INFO(ops->name, " type ", static_cast<int>(type), " n ", n, " levels ", levels, asymmetric);
                        Block x(type, rows, n, 3, 1);
                        x.fill([&](std::size_t r, std::size_t) { return value_for(random, r); });
                        const int top = asymmetric ? 2 * levels + 1 : levels;
                        std::vector<float> min(rows), max(rows), scale(rows), zero(rows);
                        std::vector<std::uint16_t> want_scale(rows), want_zero(rows);
                        REQUIRE(scalar().min_max_rows(x.values(), asymmetric ? min.data() : nullptr, max.data()));
                        REQUIRE(scalar().group_scales(min.data(), max.data(), rows, top, want_scale.data(),
                                                      asymmetric ? want_zero.data() : nullptr));
                        scalar().f16_to_f32(want_scale.data(), scale.data(), rows);
                        scalar().f16_to_f32(want_zero.data(), zero.data(), rows);
                        Guarded<std::uint8_t> want(rows * (n + 2)), q(rows * (n + 2), 1);
                        float want_error = 0;
                        scalar().quantize_rows(x.values(), scale.data(), asymmetric ? zero.data() : nullptr,
                                               !asymmetric, want.data(), n + 2, &want_error);
                        Guarded<std::uint16_t> scales(rows), zeros(rows);
                        for (const bool measured : {true, false}) {
                            float error = 0;
                            REQUIRE(ops->encode_rows(x.values(), top, scales.data(),
                                                     asymmetric ? zeros.data() : nullptr, q.data(), n + 2,
                                                     measured ? &error : nullptr, false));
                            CHECK(count_differing(q, want) == 0);
                            CHECK(count_differing(scales, want_scale) == 0);
                            CHECK(count_differing(zeros, want_zero) == 0);
                            if (measured) CHECK(same(error, want_error));
                        }
                        CHECK((q.intact() && scales.intact() && zeros.intact()));
                        // Past the caches: rows without gaps, wherever lines of memory begin.
                        for (const std::size_t offset : {0, 1, 16, 63}) {
                            Guarded<std::uint8_t> lines(rows * n, offset);
                            REQUIRE(ops->encode_rows(x.values(), top, scales.data(),
                                                     asymmetric ? zeros.data() : nullptr, lines.data(), n, nullptr,
                                                     true));
                            std::size_t differing = 0;
                            for (std::size_t r = 0; r < rows; ++r)
                                differing += std::memcmp(lines.data() + r * n, want.data() + r * (n + 2), n) != 0;
                            CHECK(differing == 0);
                            CHECK(lines.intact());
                        }
                        x.set((rows - 1) * x.stride + n - 1, INFINITY);
                        CHECK_FALSE(ops->encode_rows(x.values(), top, scales.data(),
                                                     asymmetric ? zeros.data() : nullptr, q.data(), n + 2, nullptr,
                                                     false));
                    }
}

TEST_CASE("columns encoded in one: as extremes, scales and codes one after the other") {
    Random random(54);
    for (const Ops* ops : runnable_backends())
        for (const DType type : kTypes)
            for (const std::size_t n : {1, 15, 16, 17, 32, 63, 64, 65, 128, 200, 256, 257, 320, 1090})
                for (const bool asymmetric : {false, true})
                    for (const std::size_t rows : {1, 2, 32, 33})
                        for (const bool gaps : {false, true}) {
                            const int levels = asymmetric ? rows == 33 ? 15 : 255 : rows == 33 ? 7 : 127;
                            INFO(ops->name, " type ", static_cast<int>(type), " n ", n, " rows ", rows, asymmetric,
                                 gaps);
                            Block x(type, rows, n, 3, 1);
                            x.fill([&](std::size_t, std::size_t i) { return value_for(random, i); });
                            std::vector<float> min(n), max(n), scale(n), zero(n);
                            std::vector<std::uint16_t> want_scale(n), want_zero(n);
                            REQUIRE(
                                scalar().min_max_columns(x.values(), asymmetric ? min.data() : nullptr, max.data()));
                            REQUIRE(scalar().group_scales(min.data(), max.data(), n, levels, want_scale.data(),
                                                          asymmetric ? want_zero.data() : nullptr));
                            scalar().f16_to_f32(want_scale.data(), scale.data(), n);
                            scalar().f16_to_f32(want_zero.data(), zero.data(), n);
                            const std::size_t q_stride = gaps ? n + 5 : n;  // without gaps they may go past the caches
                            Guarded<std::uint8_t> want(rows * q_stride);
                            float want_error = 0;
                            scalar().quantize_columns(x.values(), scale.data(), asymmetric ? zero.data() : nullptr,
                                                      !asymmetric, want.data(), q_stride, &want_error);
                            for (const bool streaming : {false, true})
                                for (const std::size_t offset : {0, 1, 63}) {
                                    Guarded<std::uint8_t> q(rows * q_stride, offset);
                                    Guarded<std::uint16_t> scales(n), zeros(n);
                                    float error = 0;
                                    for (float* measured : {&error, static_cast<float*>(nullptr)}) {
                                        REQUIRE(ops->encode_columns(x.values(), levels, scales.data(),
                                                                    asymmetric ? zeros.data() : nullptr, q.data(),
                                                                    q_stride, measured, streaming));
                                        std::size_t differing = 0;
                                        for (std::size_t r = 0; r < rows; ++r)
                                            differing += std::memcmp(q.data() + r * q_stride,
                                                                     want.data() + r * q_stride, n) != 0;
                                        CHECK(differing == 0);
                                    }
                                    CHECK(same(error, want_error));
                                    CHECK(count_differing(scales, want_scale) == 0);
                                    if (asymmetric) CHECK(count_differing(zeros, want_zero) == 0);
                                    CHECK((q.intact() && scales.intact() && zeros.intact()));
                                }
                            x.set((rows - 1) * x.stride + n - 1, INFINITY);
                            Guarded<std::uint8_t> q(rows * q_stride);
                            CHECK_FALSE(ops->encode_columns(x.values(), levels, want_scale.data(),
                                                            asymmetric ? want_zero.data() : nullptr, q.data(), q_stride,
                                                            nullptr, false));
                        }
}

TEST_CASE("rotated heads: from every type, to every type, and their distance") {
    Random random(52);
    for (const Ops* ops : runnable_backends())
        for (const std::size_t n : {1, 3, 16, 32, 48, 64, 80, 96, 128, 192, 256, 512})
            for (const DType type : kTypes)
                for (const bool asymmetric : {false, true}) {
                    const std::size_t rows = 9;
                    INFO(ops->name, " type ", static_cast<int>(type), " n ", n);
                    Block x(type, rows, n, 3, 1);
                    x.fill([&](std::size_t, std::size_t) { return random.normal(); });
                    Guarded<float> want_y(rows * n), y(rows * n, 1);
                    scalar().rotate_rows(x.values(), want_y.data());
                    ops->rotate_rows(x.values(), y.data());
                    CHECK(count_differing(y, want_y) == 0);
                    CHECK(y.intact());
                    std::vector<std::uint8_t> q(rows * (n + 1));
                    for (auto& code : q) code = static_cast<std::uint8_t>(random.bits());
                    std::vector<float> scale(rows), zero(rows);
                    for (std::size_t r = 0; r < rows; ++r) {
                        scale[r] = std::fabs(random.normal()) * 0.01F;
                        zero[r] = random.normal();
                    }
                    const float* z = asymmetric ? zero.data() : nullptr;
                    float want_error = 0, error = 0;
                    Block want(type, rows, n, 3, 1), found(type, rows, n, 3, 1);
                    want_error = error = 0;
                    CHECK(scalar().dequantize_rotated(q.data(), n + 1, !asymmetric, scale.data(), z, want.output(),
                                                      &want_error));
                    CHECK(
                        ops->dequantize_rotated(q.data(), n + 1, !asymmetric, scale.data(), z, found.output(), &error));
                    CHECK(same(error, want_error));
                    CHECK(count_differing(found.bytes, want.bytes) == 0);
                    CHECK(found.bytes.intact());
                    Block streamed(type, rows, n, 0, 3), plain(type, rows, n, 0, 3);
                    KvOutput out = streamed.output();
                    out.streaming = true;
                    CHECK(ops->dequantize_rotated(q.data(), n + 1, !asymmetric, scale.data(), z, out, nullptr));
                    CHECK(scalar().dequantize_rotated(q.data(), n + 1, !asymmetric, scale.data(), z, plain.output(),
                                                      nullptr));
                    CHECK(count_differing(streamed.bytes, plain.bytes) == 0);
                    CHECK(streamed.bytes.intact());
                    if (type != DType::f16) continue;
                    zero[4] = 65000;  // times sqrt(n)
                    scale[4] = 1000;
                    const bool fits = scalar().dequantize_rotated(q.data(), n + 1, !asymmetric, scale.data(),
                                                                  zero.data(), want.output(), nullptr);
                    CHECK(ops->dequantize_rotated(q.data(), n + 1, !asymmetric, scale.data(), zero.data(),
                                                  found.output(), nullptr) == fits);
                    if (n >= 16) CHECK_FALSE(fits);
                }
}

TEST_CASE("rotated heads to codes, with the largest error") {
    Random random(53);
    for (const Ops* ops : runnable_backends())
        for (const std::size_t n : {1, 3, 16, 32, 48, 64, 96, 128, 256})
            for (const DType type : kTypes)
                for (const int levels : {127, 7, 255, 15})
                    for (const std::size_t rows : {0, 1, 3, 4, 31, 64, 65, 130}) {
                        INFO(ops->name, " type ", static_cast<int>(type), " n ", n, " levels ", levels, " rows ", rows);
                        // Rows of all magnitudes: the largest error lies anywhere, some rows are zero or constant.
                        Block x(type, rows, n, 3, 1);
                        x.fill([&](std::size_t row, std::size_t i) {
                            if (row % 13 == 7) return 0.0F;
                            if (row % 17 == 5) return i == 0 ? 3.0F : 0.0F;
                            return random.normal() * std::ldexp(1.0F, static_cast<int>(row * 7 % 9)) +
                                   (row % 5 == 0 ? 40.0F : 0.0F);
                        });
                        const bool asymmetric = levels % 16 == 15 && levels != 127;
                        Guarded<std::uint8_t> want(rows * (n + 1)), q(rows * (n + 1), 1);
                        Guarded<std::uint16_t> want_scale(rows), scale(rows, 1), want_zero(rows), zero(rows, 1);
                        float want_error = 0, error = 0;
                        REQUIRE(scalar().encode_rotated(x.values(), levels, want_scale.data(),
                                                        asymmetric ? want_zero.data() : nullptr, want.data(), n + 1,
                                                        &want_error, false));
                        REQUIRE(ops->encode_rotated(x.values(), levels, scale.data(),
                                                    asymmetric ? zero.data() : nullptr, q.data(), n + 1, &error,
                                                    false));
                        CHECK(count_differing(q, want) == 0);
                        CHECK(count_differing(scale, want_scale) == 0);
                        if (asymmetric) CHECK(count_differing(zero, want_zero) == 0);
                        CHECK(same(error, want_error));
                        CHECK(q.intact());
                        CHECK(scale.intact());
                        if (rows == 0) continue;
                        Guarded<std::uint8_t> streamed(rows * n, 5);
                        error = 0;
                        REQUIRE(ops->encode_rotated(x.values(), levels, scale.data(),
                                                    asymmetric ? zero.data() : nullptr, streamed.data(), n, &error,
                                                    true));
                        std::size_t differing = 0;
                        for (std::size_t r = 0; r < rows; ++r)
                            differing += std::memcmp(streamed.data() + r * n, want.data() + r * (n + 1), n) != 0;
                        CHECK(differing == 0);
                        CHECK(streamed.intact());
                        CHECK(same(error, want_error));
                        x.set(rows / 2 * x.stride + n / 2, NAN);
                        CHECK_FALSE(ops->encode_rotated(x.values(), levels, scale.data(),
                                                        asymmetric ? zero.data() : nullptr, q.data(), n + 1, nullptr,
                                                        false));
                    }
}

TEST_CASE("rows as 8-bit floats and back, of every type") {
    Random random(53);
    for (const kernels::Fp8 format : {kernels::Fp8::e4m3fn, kernels::Fp8::e4m3fnuz, kernels::Fp8::e5m2})
        for (const Ops* ops : runnable_backends())
            for (const DType type : kTypes)
                for (const std::size_t n : lengths()) {
                    const std::size_t rows = 19;
                    INFO(ops->name, " format ", static_cast<int>(format), " type ", static_cast<int>(type), " n ", n);
                    Block x(type, rows, n, 3, 1);
                    x.fill([&](std::size_t r, std::size_t) { return value_for(random, r); });
                    std::vector<float> scale(rows);
                    REQUIRE(scalar().min_max_rows(x.values(), nullptr, scale.data()));
                    for (std::size_t r = 0; r < rows; ++r) scale[r] /= r % 4 == 3 ? 500.0F : 240.0F;  // some saturate
                    Guarded<std::uint8_t> want(rows * (n + 2)), q(rows * (n + 2), 1);
                    float error = 0, want_error = 0;
                    scalar().quantize_fp8(format, x.values(), scale.data(), want.data(), n + 2, &want_error);
                    ops->quantize_fp8(format, x.values(), scale.data(), q.data(), n + 2, &error);
                    CHECK(count_differing(q, want) == 0);
                    CHECK(same(error, want_error));
                    CHECK(q.intact());

                    Block back(type, rows, n, 3, 2), want_back(type, rows, n, 3, 2);
                    const auto decode = [&](float expected_largest) {
                        error = want_error = 0;
                        const bool fits = scalar().dequantize_fp8(format, want.data(), n + 2, scale.data(),
                                                                  want_back.output(), &want_error);
                        CHECK(fits == std::isfinite(expected_largest));
                        CHECK(ops->dequantize_fp8(format, want.data(), n + 2, scale.data(), back.output(), &error) ==
                              fits);
                        std::size_t differing = 0;
                        for (std::size_t r = 0; r < rows; ++r)
                            for (std::size_t i = 0; i < n; ++i) differing += !same(back.get(r, i), want_back.get(r, i));
                        CHECK(differing == 0);
                        if (fits) CHECK(same(error, want_error));
                        CHECK(back.bytes.intact());
                    };
                    decode(1);
                    scale[5] = type == DType::f32 ? 3e38F : 60000.0F;  // too large for f16
                    want[5 * (n + 2)] = 0x77;
                    if (type != DType::bf16) decode(INFINITY);
                    scale[5] = 1;
                    want[5 * (n + 2) + n - 1] = format == kernels::Fp8::e4m3fnuz ? 0x80 : 0x7F;
                    decode(NAN);
                }
}
