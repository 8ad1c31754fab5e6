// rms_norm and silu_mul against double precision, under the bounds of kernels/api/ops.h.
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
