// Mixtures of experts: the choice of engine/routing.h, slots, products and their sum.
#include <numeric>

#include "conformance/kernels/inputs.h"
#include "device.h"
#include "engine/routing.h"

using namespace hetero::kernels;
using namespace hetero::test;

namespace {

struct Slots {
    Slots(const Device& device, std::size_t tokens, std::size_t experts, std::size_t top_k)
        : expert(device.allocate<std::int32_t>(tokens * top_k)),
          weight(device.allocate<float>(tokens * top_k)),
          slot(device.allocate<std::int32_t>(tokens * top_k)),
          first(device.allocate<std::int32_t>(experts + 1)),
          token(device.allocate<std::int32_t>(tokens * top_k)) {}
    [[nodiscard]] DeviceSlots all() const { return {expert, weight, slot, first, token}; }
    DeviceArray<std::int32_t> expert;
    DeviceArray<float> weight;
    DeviceArray<std::int32_t> slot, first, token;
};

hetero::model::RoutingRule rule_of(const DeviceRouting& routing) {
    using Rule = hetero::model::RoutingRule;
    Rule rule;
    rule.score = routing.sigmoid ? Rule::Score::sigmoid : Rule::Score::softmax;
    rule.group_score = routing.group_by_two ? Rule::GroupScore::highest_two : Rule::GroupScore::highest;
    rule.top_k = routing.top_k;
    rule.n_groups = routing.n_groups;
    rule.top_groups = routing.top_groups;
    rule.normalize = routing.normalize;
    rule.scale = routing.scale;
    return rule;
}

}  // namespace

TEST_CASE("tokens go to the experts that the CPU chooses, and slots are in order") {
    on_device([](const Device& device) {
        Random random(1);
        struct Case {
            std::uint32_t experts, top_k, groups, top_groups;
            bool sigmoid, by_two, normalize, biased;
        };
        for (const Case& one : {Case{8, 2, 1, 1, false, false, true, false},
                                {40, 6, 1, 1, false, false, false, true},
                                {64, 6, 8, 3, false, false, false, false},
                                {32, 4, 4, 2, true, true, true, true},
                                {3, 3, 1, 1, true, false, true, false}}) {
            const std::size_t tokens = 70, n = one.experts, k = one.top_k;
            CAPTURE(n);
            std::vector<float> scores(tokens * n), bias(n);
            fill_normal(scores, random, 2);
            fill_normal(bias, random, 0.3F);
            for (std::size_t i = 0; i < n; ++i) scores[3 * n + i] = 0.5F;  // all equal
            const auto ds = device.upload(scores), db = device.upload(bias);
            const auto bad = device.upload(std::vector<unsigned long long>{~0ULL});
            DeviceRouting routing;
            routing.sigmoid = one.sigmoid;
            routing.group_by_two = one.by_two;
            routing.n_experts = one.experts;
            routing.top_k = one.top_k;
            routing.n_groups = one.groups;
            routing.top_groups = one.top_groups;
            routing.normalize = one.normalize;
            routing.scale = 1.5F;
            routing.bias = one.biased ? db.get() : nullptr;
            const Slots slots(device, tokens, n, k);
            check(device.ops.route(device.stream, routing, ds, tokens, slots.all(), bad));
            CHECK(bad.read()[0] == ~0ULL);
            const auto expert = slots.expert.read(), slot = slots.slot.read(), first = slots.first.read(),
                       token = slots.token.read();
            const std::vector<float> weight = slots.weight.read();
            std::vector<std::vector<std::int32_t>> of_expert(n);
            std::size_t wrong = 0;
            for (std::size_t t = 0; t < tokens; ++t) {
                std::vector<float> own(scores.begin() + static_cast<long>(t * n),
                                       scores.begin() + static_cast<long>((t + 1) * n));
                std::vector<float> work(2 * n);
                std::vector<hetero::engine::Routed> expected(k);
                REQUIRE(hetero::engine::route(rule_of(routing),
                                              one.biased ? std::span<const float>(bias) : std::span<const float>(), own,
                                              work, expected));
                for (std::size_t i = 0; i < k; ++i) {
                    wrong += expert[t * k + i] != static_cast<std::int32_t>(expected[i].expert);
                    wrong += !(std::fabs(weight[t * k + i] - expected[i].weight) <= 2 * 0x1p-24 * expected[i].weight);
                    of_expert[expected[i].expert].push_back(static_cast<std::int32_t>(t));
                }
            }
            std::int32_t next = 0;
            for (std::size_t e = 0; e < n; ++e) {
                wrong += first[e] != next;
                for (const std::int32_t t : of_expert[e]) {
                    wrong += token[static_cast<std::size_t>(next)] != t;
                    const auto* own = &expert[static_cast<std::size_t>(t) * k];
                    const auto i =
                        static_cast<std::size_t>(std::find(own, own + k, static_cast<std::int32_t>(e)) - own);
                    wrong += slot[static_cast<std::size_t>(t) * k + i] != next++;
                }
            }
            wrong += first[n] != next;
            CHECK(wrong == 0);
        }
    });
}

TEST_CASE("a score that is not a number takes its token out and is reported") {
    on_device([](const Device& device) {
        const std::size_t tokens = 5, n = 4, k = 2;
        std::vector<float> scores(tokens * n);
        std::iota(scores.begin(), scores.end(), 0.0F);
        scores[2 * n + 3] = std::numeric_limits<float>::quiet_NaN();
        scores[4 * n] = std::numeric_limits<float>::infinity();
        const auto ds = device.upload(scores);
        const auto bad = device.upload(std::vector<unsigned long long>{~0ULL});
        DeviceRouting routing;
        routing.n_experts = n;
        routing.top_k = k;
        const Slots slots(device, tokens, n, k);
        check(device.ops.route(device.stream, routing, ds, tokens, slots.all(), bad));
        CHECK(bad.read()[0] == 2 * n + 3);
        CHECK(slots.expert.read() == std::vector<std::int32_t>{2, 3, 2, 3, -1, -1, 2, 3, -1, -1});
        CHECK(slots.first.read() == std::vector<std::int32_t>{0, 0, 0, 3, 6});
    });
}

TEST_CASE("products of experts, from tokens and from slots, in f32 and on matrix units, and their sum") {
    on_device([](const Device& device) {
        Random random(2);
        for (const DType dtype : {DType::bf16, DType::q8_0, DType::q4_1, DType::f32})
            for (const DeviceInput input : {DeviceInput::f32, DeviceInput::bf16, DeviceInput::f16})
                for (const bool by_slot : {false, true}) {
                    if (by_slot && dtype != DType::q8_0) continue;
                    const std::size_t tokens = 9, n = 5, k = 2, rows = 18, cols = 64, n_slots = tokens * k;
                    CAPTURE(std::string(dtype_info(dtype).name));
                    CAPTURE(static_cast<int>(input));
                    const auto weight = std::find_if(weight_types().begin(), weight_types().end(),
                                                     [&](const WeightType& w) { return w.type == dtype; });
                    const std::size_t row_bytes = dtype_bytes(dtype, cols), gap = 64;
                    std::vector<std::uint8_t> w(n * (rows * row_bytes + gap));
                    std::vector<float> values;
                    for (std::size_t e = 0; e < n; ++e) {
                        const std::vector<std::uint8_t> own = random_weights(*weight, rows * cols, random);
                        std::copy(own.begin(), own.end(), w.begin() + static_cast<long>(e * (rows * row_bytes + gap)));
                        const std::vector<float> wide = dequantized(dtype, own, rows * cols);
                        values.insert(values.end(), wide.begin(), wide.end());
                    }
                    const bool half = input != DeviceInput::f32, f16 = input == DeviceInput::f16;
                    const auto round = f16 ? scalar().f32_to_f16 : scalar().f32_to_bf16;
                    const auto widen = f16 ? scalar().f16_to_f32 : scalar().bf16_to_f32;
                    std::vector<float> x(n_slots * cols), scores(tokens * n);
                    fill_normal(x, random);
                    fill_normal(scores, random);
                    std::vector<std::uint16_t> x16(x.size()), w16(values.size());
                    if (half) {
                        round(x.data(), x16.data(), x.size());
                        widen(x16.data(), x.data(), x.size());
                        round(values.data(), w16.data(), values.size());
                        widen(w16.data(), values.data(), values.size());
                    }
                    const auto dw = device.upload(w);
                    const auto dx = device.upload(x), ds = device.upload(scores);
                    const auto dx16 = device.upload(x16);
                    const auto bad = device.upload(std::vector<unsigned long long>{~0ULL});
                    DeviceRouting routing;
                    routing.n_experts = n;
                    routing.top_k = k;
                    const Slots slots(device, tokens, n, k);
                    check(device.ops.route(device.stream, routing, ds, tokens, slots.all(), bad));
                    const auto dy = device.allocate<float>(n_slots * rows);
                    const DeviceExperts experts{
                        {dtype, dw.get(), rows, cols, row_bytes, nullptr, nullptr}, n, rows * row_bytes + gap};
                    const DeviceRows in{input, half ? static_cast<const void*>(dx16.get()) : dx.get(), cols, nullptr};
                    check(device.ops.experts_gemm(device.stream, experts, slots.all(), n_slots, in, by_slot, dy, rows));
                    const std::vector<float> y = dy.read(), weights = slots.weight.read();
                    const auto expert = slots.expert.read(), slot = slots.slot.read();
                    std::size_t far = 0;
                    const auto out = device.upload(std::vector<float>(tokens * rows, 1));
                    check(device.ops.combine(device.stream, slots.all(), k, dy, rows, tokens, rows, out, rows));
                    const std::vector<float> sums = out.read();
                    for (std::size_t t = 0; t < tokens; ++t)
                        for (std::size_t r = 0; r < rows; ++r) {
                            float total = 0;
                            for (std::size_t i = 0; i < k; ++i) {
                                const auto s = static_cast<std::size_t>(slot[t * k + i]);
                                const float* wr =
                                    &values[(static_cast<std::size_t>(expert[t * k + i]) * rows + r) * cols];
                                const float* xr = &x[(by_slot ? s : t) * cols];
                                double sum = 0, ww = 0, xx = 0;
                                for (std::size_t c = 0; c < cols; ++c) {
                                    sum += static_cast<double>(wr[c]) * static_cast<double>(xr[c]);
                                    ww += static_cast<double>(wr[c]) * static_cast<double>(wr[c]);
                                    xx += static_cast<double>(xr[c]) * static_cast<double>(xr[c]);
                                }
                                const double bound = (2 * std::sqrt(cols) + 8) * 0x1p-24 * std::sqrt(ww * xx);
                                far += !(std::fabs(y[s * rows + r] - sum) <= bound);
                                const float product = y[s * rows + r] * weights[t * k + i];
                                total = i == 0 ? product : total + product;
                            }
                            far += sums[t * rows + r] != 1 + total;
                        }
                    CHECK(far == 0);
                }
    });
}
