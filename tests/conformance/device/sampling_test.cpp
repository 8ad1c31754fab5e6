// The largest logits and probabilities, against a sort in f64.
#include <numeric>

#include "conformance/kernels/inputs.h"
#include "device.h"

using namespace hetero::kernels;
using namespace hetero::test;

namespace {

// Indices of the logits, falling; of equals the first, NaN last.
std::vector<std::int32_t> sorted(const float* logits, std::size_t n) {
    std::vector<std::int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        if (std::isnan(logits[a]) || std::isnan(logits[b])) return !std::isnan(logits[a]);
        return logits[a] > logits[b];
    });
    return order;
}

}  // namespace

TEST_CASE("the largest logits are found, equals in their order") {
    on_device([](const Device& device) {
        Random random(1);
        for (const std::size_t n : {1, 7, 512, 1300})
            for (const int kind : {0, 1, 2, 3}) {
                CAPTURE(n);
                CAPTURE(kind);
                const std::size_t tokens = 2, stride = n + 1;
                std::vector<float> logits(tokens * stride);
                fill_normal(logits, random);
                for (std::size_t i = 0; i < logits.size(); ++i) {
                    if (kind == 1) logits[i] = std::round(logits[i] * 2);  // many equals, zeros of both signs
                    if (kind == 2) logits[i] = -1.25F;
                    if (kind == 3 && i % 3 == 0) logits[i] = std::numeric_limits<float>::quiet_NaN();
                    if (kind == 3 && i % 5 == 1) logits[i] = -std::numeric_limits<float>::infinity();
                }
                spoil_gaps(logits, n, stride);
                if (kind == 3 && n == 1) continue;
                const auto dl = device.upload(logits);
                for (const std::size_t k :
                     {std::size_t{1}, std::min<std::size_t>(n, 40), std::min<std::size_t>(n, 256)}) {
                    const std::size_t usable = kind == 3 ? n - (n + 2) / 3 : n;
                    if (k > usable) continue;  // only NaNs are left
                    const auto index = device.allocate<std::int32_t>(tokens * k);
                    const auto value = device.allocate<float>(tokens * k);
                    check(device.ops.top_k(device.stream, dl, stride, tokens, n, k, index, value));
                    const auto got = index.read();
                    const auto values = value.read();
                    for (std::size_t t = 0; t < tokens; ++t) {
                        const std::vector<std::int32_t> expected = sorted(&logits[t * stride], n);
                        CHECK(std::equal(expected.begin(), expected.begin() + static_cast<long>(k),
                                         got.begin() + static_cast<long>(t * k)));
                        for (std::size_t i = 0; i < k; ++i)
                            CHECK(values[t * k + i] == logits[t * stride + static_cast<std::size_t>(expected[i])]);
                    }
                    const auto best = device.allocate<std::int32_t>(tokens);
                    check(device.ops.argmax(device.stream, dl, stride, tokens, n, best, nullptr));
                    for (std::size_t t = 0; t < tokens; ++t) CHECK(best.read()[t] == sorted(&logits[t * stride], n)[0]);
                }
            }
    });
}

TEST_CASE("probabilities keep their bound") {
    on_device([](const Device& device) {
        Random random(2);
        for (const std::size_t n : {1, 40, 1300}) {
            const std::size_t tokens = 2;
            const float factor = 1.3F;
            std::vector<float> x(tokens * n);
            fill_normal(x, random, 10);
            const auto dx = device.upload(x);
            check(device.ops.softmax(device.stream, dx, n, factor, dx, n, tokens, n));
            const std::vector<float> y = dx.read();
            std::size_t far = 0;
            for (std::size_t t = 0; t < tokens; ++t) {
                double top = -1e300, sum = 0, largest = 0;
                for (std::size_t i = 0; i < n; ++i) {
                    top = std::max(top, static_cast<double>(x[t * n + i]) * factor);
                    largest = std::max(largest, std::fabs(static_cast<double>(x[t * n + i]) * factor));
                }
                for (std::size_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[t * n + i]) * factor - top);
                for (std::size_t i = 0; i < n; ++i) {
                    const double exact = std::exp(static_cast<double>(x[t * n + i]) * factor - top) / sum;
                    const double bound = (64 + std::sqrt(n) + 4 * largest) * 0x1p-24;
                    far += !(std::fabs(y[t * n + i] - exact) <= bound * exact + 0x1p-126);
                }
            }
            CHECK(far == 0);
        }
    });
}
