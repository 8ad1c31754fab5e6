// Norms, activations, rotary embedding and what is done value by value, under the bounds of kernels/api/device.h.
#include "conformance/kernels/inputs.h"
#include "device.h"

using namespace hetero::kernels;
using namespace hetero::test;

namespace {

constexpr double u = 0x1p-24;

// [rows][n] with a stride, NaN between the rows.
std::vector<float> random_rows(std::size_t rows, std::size_t n, std::size_t stride, Random& random, float scale = 1) {
    std::vector<float> values(rows * stride);
    fill_normal(values, random, scale);
    spoil_gaps(values, n, stride);
    return values;
}

[[maybe_unused]] float widened(std::uint16_t bits, DType type) {
    float value = 0;
    (type == DType::f16 ? scalar().f16_to_f32 : scalar().bf16_to_f32)(&bits, &value, 1);
    return value;
}
std::uint16_t rounded(float value, DType type) {
    std::uint16_t bits = 0;
    (type == DType::f16 ? scalar().f32_to_f16 : scalar().f32_to_bf16)(&value, &bits, 1);
    return bits;
}

}  // namespace

TEST_CASE("norms keep their bounds, write both widths, and may work in place") {
    on_device([](const Device& device) {
        Random random(1);
        for (const auto kind : {DeviceNorm::Kind::rms, DeviceNorm::Kind::layer})
            for (const std::size_t n : {1, 31, 64, 129, 576, 2050})
                for (const float scale : {1.0F, 1e25F}) {
                    if (scale > 1 && kind == DeviceNorm::Kind::layer) continue;
                    CAPTURE(n);
                    const std::size_t tokens = 3, stride = n + 5;
                    const std::vector<float> x = random_rows(tokens, n, stride, random, scale);
                    std::vector<float> w(n), b(n);
                    fill_normal(w, random);
                    fill_normal(b, random);
                    const auto dx = device.upload(x), dw = device.upload(w), db = device.upload(b);
                    const auto half = device.allocate<std::uint16_t>(tokens * n);
                    DeviceNorm norm{kind, dw, kind == DeviceNorm::Kind::layer ? db.get() : nullptr, 1e-5F};
                    DeviceOutput out{dx, stride, half, n, DType::f16};
                    check(device.ops.norm(device.stream, norm, {dx, stride, 0}, tokens, 1, n, false, out));
                    const std::vector<float> y = dx.read();
                    const std::vector<std::uint16_t> y16 = half.read();
                    std::size_t far = 0;
                    for (std::size_t t = 0; t < tokens; ++t) {
                        const float* row = x.data() + t * stride;
                        std::vector<float> expected(n);
                        double largest = 0, sum = 0, squares = 0;
                        for (std::size_t i = 0; i < n; ++i) {
                            largest = std::max<double>(largest, std::fabs(row[i]));
                            sum += row[i];
                        }
                        for (std::size_t i = 0; i < n; ++i)
                            squares += std::pow(row[i] - sum / static_cast<double>(n), 2);
                        const double s = std::sqrt(squares / static_cast<double>(n) + 1e-5);
                        if (kind == DeviceNorm::Kind::rms)
                            scalar().rms_norm(row, w.data(), expected.data(), n, 1e-5F);
                        else
                            scalar().layer_norm(row, w.data(), b.data(), expected.data(), n, 1e-5F);
                        for (std::size_t i = 0; i < n; ++i) {
                            const double bound = kind == DeviceNorm::Kind::rms
                                                     ? (std::sqrt(n) + 9) * u * std::fabs(expected[i])
                                                     : 17 * u * (largest / s * std::fabs(w[i]) + std::fabs(b[i]));
                            far += !(std::fabs(double{y[t * stride + i]} - double{expected[i]}) <= bound);
                            far += y16[t * n + i] != rounded(y[t * stride + i], DType::f16);
                        }
                    }
                    CHECK(far == 0);
                }
    });
}

TEST_CASE("a norm of heads leaves what lies between them, and adds where it is told to") {
    on_device([](const Device& device) {
        Random random(2);
        const std::size_t tokens = 2, heads = 3, dim = 40, head_stride = 64, stride = heads * head_stride + 7;
        std::vector<float> x(tokens * stride), w(dim);
        fill_normal(x, random);
        fill_normal(w, random);
        const auto dx = device.upload(x), dw = device.upload(w), dy = device.upload(x);
        check(device.ops.norm(device.stream, {DeviceNorm::Kind::rms, dw, nullptr, 1e-6F}, {dx, stride, head_stride},
                              tokens, heads, dim, true, {dy, stride, nullptr, 0, DType::bf16}));
        const std::vector<float> y = dy.read();
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t i = 0; i < stride; ++i) {
                const std::size_t head = i / head_stride, d = i % head_stride, at = t * stride + i;
                if (head >= heads || d >= dim) {
                    CHECK(y[at] == x[at]);
                    continue;
                }
                std::vector<float> expected(dim);
                scalar().rms_norm(x.data() + t * stride + head * head_stride, w.data(), expected.data(), dim, 1e-6F);
                CHECK(std::fabs(y[at] - (expected[d] + x[at])) <= 20 * u * (std::fabs(expected[d]) + std::fabs(x[at])));
            }
    });
}

TEST_CASE("gates keep their bounds over the whole range") {
    on_device([](const Device& device) {
        Random random(3);
        std::vector<float> gate, up;
        for (double x = -104; x <= 104; x += 0.37) gate.push_back(static_cast<float>(x));
        for (const float x : {-1e30F, -1000.0F, 1000.0F, 1e30F, 0.0F, -0.0F, 1e-30F, -64.0F, -64.5F}) gate.push_back(x);
        up.resize(gate.size());
        fill_normal(up, random);
        const std::size_t n = gate.size();
        const auto dg = device.upload(gate), du = device.upload(up);
        const auto out = device.allocate<float>(n);
        const auto half = device.allocate<std::uint16_t>(n);
        const auto run = [&](Activation activation, const float* factor) {
            check(device.ops.activate(device.stream, activation, dg, factor, n, 1, n, {out, n, half, n, DType::bf16}));
            return out.read();
        };
        std::vector<float> expected(n);
        scalar().silu_mul(gate.data(), up.data(), expected.data(), n);
        std::vector<float> y = run(Activation::silu, du);
        std::size_t far = 0;
        for (std::size_t i = 0; i < n; ++i)
            far += !(std::fabs(double{y[i]} - double{expected[i]}) <= 17 * u * std::fabs(expected[i]) + 0x1p-148);
        CHECK(far == 0);
        const std::vector<std::uint16_t> bits = half.read();
        for (std::size_t i = 0; i < n; ++i) far += bits[i] != rounded(y[i], DType::bf16);
        CHECK(far == 0);
        for (const bool erf : {false, true})
            for (const bool gated : {false, true}) {
                (erf ? scalar().gelu_erf : scalar().gelu_tanh)(gate.data(), expected.data(), n);
                y = run(erf ? Activation::gelu_erf : Activation::gelu_tanh, gated ? du.get() : nullptr);
                for (std::size_t i = 0; i < n; ++i) {
                    const double factor = gated ? double{up[i]} : 1;
                    const double bound = 9 * u * std::fabs(gate[i] * factor) + 0x1p-148;
                    far += !(std::fabs(double{y[i]} - double{expected[i]} * factor) <= bound);
                }
                CHECK(far == 0);
            }
    });
}

TEST_CASE("rope has the bits of the reference, in both pairings, in place and not") {
    on_device([](const Device& device) {
        Random random(4);
        for (const auto& [dim, pairs] : {std::pair<std::size_t, std::size_t>{64, 32}, {80, 16}, {192, 32}, {6, 3}})
            for (const RopePairing pairing : {RopePairing::half_split, RopePairing::interleaved})
                for (const bool in_place : {false, true}) {
                    const std::size_t tokens = 3, heads = 2, stride = heads * dim + 3;
                    std::vector<float> x(tokens * stride);
                    fill_normal(x, random);
                    std::vector<double> frequencies(pairs);
                    for (std::size_t i = 0; i < pairs; ++i)
                        frequencies[i] = std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs));
                    const std::vector<std::int32_t> positions = {0, 77, 131071};
                    const auto dx = device.upload(x), dy = device.upload(std::vector<float>(x.size(), 7));
                    const auto df = device.upload(frequencies);
                    const auto dp = device.upload(positions);
                    const auto cos = device.allocate<float>(tokens * pairs),
                               sin = device.allocate<float>(tokens * pairs);
                    check(device.ops.rope_angles(device.stream, df, pairs, 1.25, dp, tokens, cos, sin));
                    float* to = in_place ? dx.get() : dy.get();
                    check(device.ops.rope(device.stream, {dx, stride, dim}, {to, stride, dim}, tokens, heads, dim, cos,
                                          sin, pairs, pairing));
                    const std::vector<float> c = cos.read(), s = sin.read(), y = in_place ? dx.read() : dy.read();
                    std::vector<float> expected = in_place ? x : std::vector<float>(x.size(), 7);
                    for (std::size_t t = 0; t < tokens; ++t) {
                        for (std::size_t i = 0; i < pairs; ++i) {
                            const double angle = positions[t] * frequencies[i];
                            CHECK(std::fabs(c[t * pairs + i] - std::cos(angle) * 1.25) <= 2 * u);
                            CHECK(std::fabs(s[t * pairs + i] - std::sin(angle) * 1.25) <= 2 * u);
                        }
                        scalar().rope(x.data() + t * stride, expected.data() + t * stride, heads, dim,
                                      {c.data(), s.data(), pairs}, t, pairing);
                    }
                    CHECK(count_differing(y, expected) == 0);
                }
    });
}

TEST_CASE("sums, factors and caps value by value") {
    on_device([](const Device& device) {
        Random random(5);
        const std::size_t tokens = 3, n = 300, x_stride = 305, y_stride = 302;
        const std::vector<float> x = random_rows(tokens, n, x_stride, random, 3);
        const std::vector<float> y = random_rows(tokens, n, y_stride, random, 3);
        const auto dx = device.upload(x), dy = device.upload(y);
        check(device.ops.add(device.stream, dx, x_stride, dy, y_stride, tokens, n));
        check(device.ops.scale(device.stream, dy, y_stride, tokens, n, 1.7F));
        const std::vector<float> scaled = dy.read();
        check(device.ops.softcap(device.stream, dy, y_stride, tokens, n, 5));
        const std::vector<float> capped = dy.read();
        std::size_t far = 0;
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t i = 0; i < n; ++i) {
                const float sum = (y[t * y_stride + i] + x[t * x_stride + i]) * 1.7F;
                far += scaled[t * y_stride + i] != sum;
                far += std::fabs(capped[t * y_stride + i] - 5 * std::tanh(sum / 5.0)) > 9 * u * 5;
            }
        CHECK(far == 0);
    });
}

TEST_CASE("the first value that is not finite is found") {
    on_device([](const Device& device) {
        const std::size_t tokens = 4, n = 700, stride = 703;
        std::vector<float> x(tokens * stride, 1.0F);
        const auto place_in = [&](const std::vector<float>& values) {
            const auto dx = device.upload(values);
            const auto place = device.upload(std::vector<unsigned long long>{~0ULL});
            check(device.ops.find_not_finite(device.stream, dx, stride, tokens, n, place));
            return place.read()[0];
        };
        x[n] = std::numeric_limits<float>::quiet_NaN();  // between the rows
        CHECK(place_in(x) == ~0ULL);
        x[3 * stride + 5] = -std::numeric_limits<float>::infinity();
        CHECK(place_in(x) == 3 * n + 5);
        x[2 * stride + 699] = std::numeric_limits<float>::quiet_NaN();
        CHECK(place_in(x) == 2 * n + 699);
    });
}
