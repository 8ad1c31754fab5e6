// The largest logits, against a sort, and the sum that makes probabilities of them.
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

struct Top {
    Top(const Device& device, const float* logits, std::size_t stride, std::size_t tokens, std::size_t n, std::size_t k,
        double factor) {
        const auto dindex = device.allocate<std::int32_t>(tokens * k);
        const auto dvalue = device.allocate<float>(tokens * k);
        const auto dtotal = device.allocate<double>(tokens);
        const auto dodd = device.allocate<std::uint32_t>(tokens);
        const auto scratch = device.allocate<std::byte>(device.ops.top_k_scratch_bytes(tokens, n, k));
        check(device.ops.top_k(device.stream, logits, stride, tokens, n, k, factor, {dindex, dvalue, dtotal, dodd},
                               scratch.get()));
        index = dindex.read();
        value = dvalue.read();
        total = dtotal.read();
        odd = dodd.read();
    }
    std::vector<std::int32_t> index;
    std::vector<float> value;
    std::vector<double> total;
    std::vector<std::uint32_t> odd;
};

}  // namespace

TEST_CASE("the largest logits are found, equals in their order") {
    on_device([](const Device& device) {
        Random random(1);
        for (const std::size_t n : {1, 7, 512, 4096, 4097, 9000})  // 4096: a piece
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
                const auto dl = device.upload(logits);
                for (const std::size_t k :
                     {std::size_t{1}, std::min<std::size_t>(n, 40), std::min<std::size_t>(n, 256)}) {
                    const Top got(device, dl, stride, tokens, n, k, 0);
                    for (std::size_t t = 0; t < tokens; ++t) {
                        const float* row = &logits[t * stride];
                        const std::vector<std::int32_t> expected = sorted(row, n);
                        CHECK(std::equal(expected.begin(), expected.begin() + static_cast<long>(k),
                                         got.index.begin() + static_cast<long>(t * k)));
                        for (std::size_t i = 0; i < k; ++i) {
                            const float wanted = row[expected[i]];
                            CHECK((got.value[t * k + i] == wanted || std::isnan(wanted)));
                        }
                        CHECK(got.odd[t] == static_cast<std::uint32_t>(
                                                std::count_if(row, row + n, [](float x) { return std::isnan(x); })));
                        CHECK(got.total[t] == 0);
                    }
                }
            }
    });
}

TEST_CASE("the sum over a row keeps its bound, infinities are counted or nothing") {
    on_device([](const Device& device) {
        Random random(2);
        constexpr float infinity = std::numeric_limits<float>::infinity();
        for (const std::size_t n : {1, 40, 5000, 9000}) {
            const std::size_t tokens = 2;
            const double factor = 1.3;
            std::vector<float> x(tokens * n);
            fill_normal(x, random, 10);
            for (std::size_t i = n / 2; i < n && n > 1; ++i) x[i] = -infinity;  // a whole piece of the longest
            const auto dx = device.upload(x);
            const Top got(device, dx, n, tokens, n, 1, factor);
            for (std::size_t t = 0; t < tokens; ++t) {
                double top = -1e300, sum = 0;
                for (std::size_t i = 0; i < n; ++i) top = std::max(top, static_cast<double>(x[t * n + i]));
                for (std::size_t i = 0; i < n; ++i) sum += std::exp((static_cast<double>(x[t * n + i]) - top) * factor);
                CHECK(std::fabs(got.total[t] - sum) <= 2 * static_cast<double>(n + 8) * 0x1p-52 * sum);
                CHECK(got.odd[t] == 0);
            }
            x[n - 1] = infinity;
            const auto dy = device.upload(x);
            CHECK(Top(device, dy, n, tokens, n, 1, factor).odd == std::vector<std::uint32_t>{1, 0});
        }
    });
}

TEST_CASE("no more than 256 of the largest, and than there are, are found") {
    on_device([](const Device& device) {
        for (const auto& [n, k] : {std::pair<std::size_t, std::size_t>{4, 5}, {300, 257}, {4, 0}})
            CHECK(device.ops.top_k(device.stream, nullptr, n, 1, n, k, 0, {}, nullptr).kind ==
                  DeviceFault::Kind::unsupported);
    });
}
