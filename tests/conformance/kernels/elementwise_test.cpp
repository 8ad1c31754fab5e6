// Norms, activations and the soft cap against double precision, under the bounds of kernels/api/ops.h.
#include "inputs.h"

using namespace hetero::kernels;
using namespace hetero::test;

namespace {

void check_rms_norm(const Ops& ops, const Guarded<float>& x, const Guarded<float>& w, float eps) {
    const std::size_t n = x.size();
    Guarded<float> y(n, 1);
    ops.rms_norm(x.data(), w.data(), y.data(), n, eps);
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    const double root = std::sqrt(sum / static_cast<double>(n) + static_cast<double>(eps));
    std::size_t far = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const double exact = static_cast<double>(x[i]) / root * static_cast<double>(w[i]);
        const double bound = (std::sqrt(static_cast<double>(n)) + 8) * 0x1p-24 * std::fabs(exact) + 0x1p-149;
        far += !(std::fabs(static_cast<double>(y[i]) - exact) <= bound);
    }
    CHECK(far == 0);
    CHECK(y.intact());
}

}  // namespace

TEST_CASE("rms_norm keeps its bound at every length") {
    Random random(1);
    for (const Ops* ops : runnable_backends())
        for (std::size_t n = 1; n <= 37; ++n)
            for (std::size_t skew : {0, 1, 9}) {
                INFO(ops->name, " n ", n, " skew ", skew);
                Guarded<float> x(n, skew), w(n, skew + 1);
                fill_normal(x, random);
                fill_normal(w, random);
                check_rms_norm(*ops, x, w, 1e-5F);
            }
}

TEST_CASE("rms_norm of long, large, tiny and one-sided rows") {
    Random random(2);
    for (const Ops* ops : runnable_backends())
        for (std::size_t n : {576, 1536, 16384})
            for (const float scale : {1.0F, 1e-20F, 1e15F, 1e25F}) {  // squares over- or underflow f32
                INFO(ops->name, " n ", n, " scale ", scale);
                Guarded<float> x(n, 2), w(n);
                for (std::size_t i = 0; i < n; ++i) x[i] = scale * (0.1F + std::fabs(random.normal()));
                fill_normal(w, random);
                check_rms_norm(*ops, x, w, 1e-6F);
            }
}

TEST_CASE("rms_norm passes NaN on, and gives zero for zeros") {
    for (const Ops* ops : runnable_backends()) {
        INFO(ops->name);
        Guarded<float> x(33), w(33), y(33);
        for (std::size_t i = 0; i < 33; ++i) w[i] = 1;
        ops->rms_norm(x.data(), w.data(), y.data(), 33, 1e-6F);
        for (std::size_t i = 0; i < 33; ++i) CHECK(y[i] == 0);
        x[32] = NAN;
        ops->rms_norm(x.data(), w.data(), y.data(), 33, 1e-6F);
        for (std::size_t i = 0; i < 33; ++i) CHECK(std::isnan(y[i]));
    }
}

TEST_CASE("silu_mul keeps its bound over the whole range") {
    std::vector<float> gates = {0.0F, -0.0F, 1e-40F, -1e-40F, 3.4e38F, -3.4e38F, 1e-20F, -1e-20F};
    for (int i = 0; i <= 40000; ++i) gates.push_back(static_cast<float>(-200 + 0.01 * i));
    const float ups[] = {1.0F, -1.0F, 0.0F, 1e-3F, 1e6F, -1e20F, 1e-38F, 0.7F};
    for (const Ops* ops : runnable_backends()) {
        INFO(ops->name);
        for (const float up : ups) {
            INFO("up ", up);
            Guarded<float> gate(gates.size(), 1), u(gates.size(), 2), y(gates.size(), 3);
            for (std::size_t i = 0; i < gates.size(); ++i) {
                gate[i] = gates[i];
                u[i] = up;
            }
            ops->silu_mul(gate.data(), u.data(), y.data(), gates.size());
            std::size_t far = 0;
            for (std::size_t i = 0; i < gates.size(); ++i) {
                const double g = gates[i], exact = g / (1 + std::exp(-g)) * static_cast<double>(up);
                if (std::fabs(exact) > 3.4e38) {
                    far += std::fabs(y[i]) < 3.39e38F;
                    continue;
                }
                const double error = std::fabs(static_cast<double>(y[i]) - exact);
                far += !(error <= 16 * 0x1p-24 * std::fabs(exact) + 0x1p-149);
            }
            CHECK(far == 0);
            CHECK(y.intact());
        }
    }
}

TEST_CASE("silu_mul at every length, and at NaN and infinity") {
    Random random(3);
    const float special[] = {NAN, INFINITY, -INFINITY};
    for (const Ops* ops : runnable_backends())
        for (std::size_t n = 0; n <= 37; ++n) {
            INFO(ops->name, " n ", n);
            Guarded<float> gate(n, 1), up(n, 2), y(n, 3), expected(n);
            fill_normal(gate, random, 5);
            fill_normal(up, random);
            for (std::size_t i = 0; i < n; i += 5) gate[i] = special[i % 3];
            ops->silu_mul(gate.data(), up.data(), y.data(), n);
            scalar().silu_mul(gate.data(), up.data(), expected.data(), n);
            for (std::size_t i = 0; i < n; ++i) {
                if (std::isfinite(expected[i]))
                    CHECK(y[i] == doctest::Approx(expected[i]).epsilon(32 * 0x1p-24));
                else
                    CHECK(same(y[i], expected[i]));
            }
            CHECK(y.intact());
        }
}

namespace {

void check_layer_norm(const Ops& ops, const Guarded<float>& x, const Guarded<float>& w, const Guarded<float>& b,
                      float eps) {
    const std::size_t n = x.size();
    Guarded<float> y(n, 1), in_place = x;
    ops.layer_norm(x.data(), w.data(), b.data(), y.data(), n, eps);
    ops.layer_norm(in_place.data(), w.data(), b.data(), in_place.data(), n, eps);
    double sum = 0, squares = 0, largest = 0;
    for (std::size_t i = 0; i < n; ++i) {
        sum += static_cast<double>(x[i]);
        largest = std::max(largest, std::fabs(static_cast<double>(x[i])));
    }
    const double mean = sum / static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i) squares += std::pow(static_cast<double>(x[i]) - mean, 2);
    const double root = std::sqrt(squares / static_cast<double>(n) + static_cast<double>(eps));
    std::size_t far = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const double weight = static_cast<double>(w[i]), bias = static_cast<double>(b[i]);
        const double exact = (static_cast<double>(x[i]) - mean) / root * weight + bias;
        const double bound = 16 * 0x1p-24 * (largest / root * std::fabs(weight) + std::fabs(bias)) + 0x1p-149;
        far += !(std::fabs(static_cast<double>(y[i]) - exact) <= bound);
    }
    CHECK(far == 0);
    CHECK(y.intact());
    CHECK(count_differing(in_place, y) == 0);
}

// The same function of every element, within bound(x).
template <class Run, class Exact, class Bound>
void check_function(const std::vector<float>& inputs, Run run, Exact exact, Bound bound) {
    Guarded<float> x(inputs.size(), 1), y(inputs.size(), 3);
    for (std::size_t i = 0; i < inputs.size(); ++i) x[i] = inputs[i];
    run(x.data(), y.data(), inputs.size());
    std::size_t far = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const double value = static_cast<double>(inputs[i]);
        far += !(std::fabs(static_cast<double>(y[i]) - exact(value)) <= bound(value) + 0x1p-149);
    }
    CHECK(far == 0);
    CHECK(y.intact());
}

std::vector<float> whole_range() {
    std::vector<float> values = {0.0F,   -0.0F,   1e-40F,  -1e-40F,  3e38F, -3e38F,
                                 1e-20F, -1e-20F, 1.5e19F, -1.5e19F, 1e13F, -1e13F};
    for (int i = 0; i <= 40000; ++i) values.push_back(static_cast<float>(-20 + 0.001 * i));
    for (int i = 0; i <= 4000; ++i) values.push_back(static_cast<float>(-200 + 0.1 * i));
    return values;
}

double exact_gelu_tanh(double x) {
    // As x / (1 + exp(-2u)): no digits are lost where tanh is close to -1.
    return x / (1 + std::exp(-2 * std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}
double exact_gelu_erf(double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0)); }

}  // namespace

TEST_CASE("layer_norm keeps its bound at every length, and in long, large, tiny and one-sided rows") {
    Random random(11);
    for (const Ops* ops : runnable_backends()) {
        for (std::size_t n = 1; n <= 37; ++n)
            for (std::size_t skew : {0, 1, 9}) {
                INFO(ops->name, " n ", n, " skew ", skew);
                Guarded<float> x(n, skew), w(n, skew + 1), b(n, skew + 2);
                fill_normal(x, random);
                fill_normal(w, random);
                fill_normal(b, random);
                check_layer_norm(*ops, x, w, b, 1e-5F);
            }
        for (std::size_t n : {576, 1531, 16384})
            for (const float scale : {1.0F, 1e-20F, 1e15F})
                for (const float offset : {0.0F, 3.0F, 1000.0F}) {
                    INFO(ops->name, " n ", n, " scale ", scale, " offset ", offset);
                    Guarded<float> x(n, 2), w(n), b(n);
                    for (std::size_t i = 0; i < n; ++i) x[i] = scale * (offset + random.normal());
                    fill_normal(w, random);
                    fill_normal(b, random);
                    check_layer_norm(*ops, x, w, b, 1e-6F);
                }
    }
}

TEST_CASE("layer_norm passes NaN on, and gives the bias for equal values") {
    for (const Ops* ops : runnable_backends()) {
        INFO(ops->name);
        Guarded<float> x(33), w(33), b(33), y(33);
        for (std::size_t i = 0; i < 33; ++i) {
            x[i] = 0.75F;
            w[i] = 2;
            b[i] = static_cast<float>(i);
        }
        ops->layer_norm(x.data(), w.data(), b.data(), y.data(), 33, 1e-6F);
        CHECK(count_differing(y, b) == 0);
        x[32] = NAN;
        ops->layer_norm(x.data(), w.data(), b.data(), y.data(), 33, 1e-6F);
        for (std::size_t i = 0; i < 33; ++i) CHECK(std::isnan(y[i]));
    }
}

TEST_CASE("both GELUs keep their bound over the whole range") {
    const auto bound = [](double x) { return 8 * 0x1p-24 * std::fabs(x); };
    for (const Ops* ops : runnable_backends()) {
        INFO(ops->name);
        check_function(whole_range(), ops->gelu_tanh, exact_gelu_tanh, bound);
        check_function(whole_range(), ops->gelu_erf, exact_gelu_erf, bound);
    }
}

TEST_CASE("the soft cap keeps its bound over the whole range") {
    for (const Ops* ops : runnable_backends())
        for (const double cap : {0.5, 4.0, 30.0, 50.0}) {
            INFO(ops->name, " cap ", cap);
            const auto run = [&](const float* x, float* y, std::size_t n) {
                std::copy_n(x, n, y);
                ops->softcap(y, static_cast<float>(cap), n);
            };
            check_function(
                whole_range(), run, [&](double x) { return cap * std::tanh(x / cap); },
                [&](double) { return 8 * 0x1p-24 * cap; });
        }
}

TEST_CASE("GELU and soft cap at every length, misaligned and in place, and at NaN and infinity") {
    Random random(12);
    const float special[] = {NAN, INFINITY, -INFINITY};
    for (const Ops* ops : runnable_backends())
        for (std::size_t n = 0; n <= 37; ++n) {
            INFO(ops->name, " n ", n);
            Guarded<float> x(n, 1);
            fill_normal(x, random, 3);
            for (std::size_t i = 0; i < n; i += 5) x[i] = special[i / 5 % 3];
            for (const auto gelu : {&Ops::gelu_tanh, &Ops::gelu_erf}) {
                Guarded<float> y(n, 3), in_place = x, expected(n);
                (ops->*gelu)(x.data(), y.data(), n);
                (ops->*gelu)(in_place.data(), in_place.data(), n);
                (scalar().*gelu)(x.data(), expected.data(), n);
                for (std::size_t i = 0; i < n; ++i) {
                    if (std::isfinite(x[i]))
                        CHECK(std::fabs(y[i] - expected[i]) <= 16 * 0x1p-24F * std::fabs(x[i]));
                    else
                        CHECK(same(y[i], expected[i]));
                }
                CHECK(y.intact());
                CHECK(in_place.intact());
                CHECK(count_differing(in_place, y) == 0);
            }
            Guarded<float> capped = x, expected = x;
            ops->softcap(capped.data(), 5, n);
            scalar().softcap(expected.data(), 5, n);
            for (std::size_t i = 0; i < n; ++i) {
                if (std::isnan(x[i]))
                    CHECK(std::isnan(capped[i]));
                else
                    CHECK(std::fabs(capped[i] - expected[i]) <= 16 * 0x1p-24F * 5);
            }
            CHECK(capped.intact());
        }
}
