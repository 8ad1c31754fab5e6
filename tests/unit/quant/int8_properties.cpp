// int8 on adversarial groups: against an oracle written from the definition, and by properties.
#include <algorithm>
#include <random>

#include "unit/quant/support.h"

using namespace hetero;
using namespace hetero::test;
using quant::Axis;
using quant::DType;
using quant::Params;
using quant::Shape;

namespace {

// Values of one kind per (token, head), so that every group of every shape meets each kind.
std::vector<float> adversarial(const Shape& shape, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(shape.elements());
    for (std::size_t row = 0; row < shape.tokens * shape.heads; ++row) {
        float* values = x.data() + row * shape.head_dim;
        const auto kind = (row + seed) % 10;
        const float size = std::ldexp(1.0F, static_cast<int>(random() % 24) - 12);
        for (std::size_t d = 0; d < shape.head_dim; ++d) {
            switch (kind) {
                case 0:
                    values[d] = 1.1F * size;
                    break;  // constant
                case 1:
                    values[d] = d == row % shape.head_dim ? 1e4F : normal(random);
                    break;  // one outlier
                case 2:
                    values[d] = normal(random) * 1e-40F;
                    break;  // subnormal
                case 3:
                    values[d] = (d % 2 == 0 ? size : -size);
                    break;  // alternating sign
                case 4:
                    values[d] = d % 2 == 0 ? 0.0F : -0.0F;
                    break;
                case 5:
                    values[d] = 100 + normal(random) * 0.01F;
                    break;  // far from zero, narrow
                case 6:
                    values[d] = -60000 + normal(random) * 5;
                    break;
                case 7:
                    values[d] = normal(random) * std::ldexp(1.0F, -static_cast<int>(d % 30));
                    break;
                case 8:
                    values[d] = std::round(normal(random) * 20) * size / 2;
                    break;  // ties
                default:
                    values[d] = normal(random) * size;
                    break;
            }
        }
    }
    return x;
}

std::vector<Params> all_params(std::initializer_list<std::uint32_t> token_groups,
                               std::initializer_list<std::uint32_t> channel_groups) {
    std::vector<Params> out;
    for (bool symmetric : {true, false}) {
        for (DType scale : {DType::f16, DType::f32}) {
            for (std::uint32_t group : token_groups) out.push_back({Axis::token, group, symmetric, scale});
            for (std::uint32_t group : channel_groups) out.push_back({Axis::channel, group, symmetric, scale});
        }
    }
    return out;
}

// Which scale belongs to an element, from the layout in the documentation.
std::size_t scale_index(const Params& p, const Shape& shape, std::size_t i) {
    const std::size_t dim = i % shape.head_dim, head = i / shape.head_dim % shape.heads,
                      token = i / shape.head_dim / shape.heads;
    if (p.axis == Axis::channel) return (token / p.group * shape.heads + head) * shape.head_dim + dim;
    const std::size_t group = p.group == 0 ? shape.head_dim : p.group;
    return (token * shape.heads + head) * ((shape.head_dim + group - 1) / group) + dim / group;
}

const std::vector<float>& f16_values() {
    static const std::vector<float> values = [] {
        std::vector<float> out;
        for (int bits = 0; bits < 0x7C00; ++bits) out.push_back(kernels::f16_value(static_cast<std::uint16_t>(bits)));
        return out;
    }();
    return values;
}
float table_round_up(double x) { return *std::lower_bound(f16_values().begin(), f16_values().end(), x); }
float table_round_down(double x) {
    if (x < 0) return -table_round_up(-x);
    return *(std::upper_bound(f16_values().begin(), f16_values().end(), x) - 1);
}

struct Parameters {
    float scale, zero;
};

Parameters oracle(const Params& p, const std::vector<float>& group) {
    const float min = *std::min_element(group.begin(), group.end()),
                max = *std::max_element(group.begin(), group.end());
    if (p.scale_dtype == DType::f16) {
        if (p.symmetric) return {table_round_up(std::max(std::fabs(min), std::fabs(max)) / 127.0), 0};
        const float zero = table_round_down(min);
        return {table_round_up((static_cast<double>(max) - zero) / 255), zero};
    }
    const float range = p.symmetric ? std::max(std::fabs(min), std::fabs(max)) : max - min;
    const int levels = p.symmetric ? 127 : 255;
    float scale = range / static_cast<float>(levels);
    while (scale < std::numeric_limits<float>::min() && static_cast<double>(scale) * levels < range) {
        scale = std::nextafter(scale, 1.0F);
    }
    return {scale, p.symmetric ? 0 : min};
}

int oracle_code(const Params& p, const Parameters& group, float x) {
    if (group.scale == 0) return 0;
    const float code = std::nearbyint((x - group.zero) / group.scale);
    return static_cast<int>(p.symmetric ? std::clamp(code, -127.0F, 127.0F) : std::clamp(code, 0.0F, 255.0F));
}

}  // namespace

TEST_CASE("codes, scales and zeros follow the definition, errors stay within half a step") {
    for (std::uint32_t head_dim : {64U, 80U, 96U, 128U}) {
        for (std::uint64_t tokens : {0ULL, 1ULL, 15ULL, 16ULL, 17ULL, 35ULL}) {
            const Shape shape{tokens, 3, head_dim};
            const std::vector<float> x = adversarial(shape, head_dim + static_cast<unsigned>(tokens));
            for (const Params& p : all_params({0, 1, 7, 32, 64}, {1, 16, 100})) {
                CAPTURE(head_dim);
                CAPTURE(tokens);
                CAPTURE(static_cast<int>(p.axis));
                CAPTURE(p.group);
                CAPTURE(p.symmetric);
                CAPTURE(static_cast<int>(p.scale_dtype));
                const quant::Encoded encoded = encode("int8", p, shape, x);
                const auto q = codes(p, encoded);
                const auto s = scales(p, encoded.scale), z = scales(p, encoded.zero);
                const auto back = decode("int8", p, shape, encoded);
                std::vector<std::vector<float>> groups(s.size());
                for (std::size_t i = 0; i < x.size(); ++i) groups[scale_index(p, shape, i)].push_back(x[i]);
                std::vector<Parameters> want;
                int wrong_scales = 0;
                for (std::size_t g = 0; g < groups.size(); ++g) {
                    REQUIRE_FALSE(groups[g].empty());
                    want.push_back(oracle(p, groups[g]));
                    if (s[g] != want[g].scale || (!p.symmetric && z[g] != want[g].zero)) ++wrong_scales;
                }
                CHECK(wrong_scales == 0);
                int wrong_codes = 0, wrong_values = 0, over_bound = 0, over_group_bound = 0, not_idempotent = 0;
                for (std::size_t i = 0; i < x.size(); ++i) {
                    const std::size_t g = scale_index(p, shape, i);
                    if (q[i] != oracle_code(p, want[g], x[i])) ++wrong_codes;
                    const float decoded = static_cast<float>(q[i]) * want[g].scale + want[g].zero;
                    if (back[i] != decoded) ++wrong_values;
                    const double error = std::fabs(static_cast<double>(x[i]) - back[i]);
                    const float rounding = ulp(std::fabs(x[i]) + std::fabs(want[g].zero));
                    if (!(error <= want[g].scale / 2.0 + 2.0 * rounding)) ++over_bound;
                    const auto [lowest, highest] = std::minmax_element(groups[g].begin(), groups[g].end());
                    if (!(error <= codec("int8").error_bound(p, *lowest, *highest))) ++over_group_bound;
                    // where the step is wider than the rounding of x', the codes survive another round
                    if (want[g].scale > 4 * rounding && oracle_code(p, want[g], back[i]) != q[i]) ++not_idempotent;
                }
                CHECK(wrong_codes == 0);
                CHECK(wrong_values == 0);
                CHECK(over_bound == 0);
                CHECK(over_group_bound == 0);
                CHECK(not_idempotent == 0);
            }
        }
    }
}

TEST_CASE("order and sign are kept") {
    const Shape shape{40, 2, 64};
    const std::vector<float> x = adversarial(shape, 3);
    for (const Params& p : all_params({0, 32}, {8})) {
        const auto encoded = encode("int8", p, shape, x);
        const auto q = codes(p, encoded);
        std::vector<std::vector<std::pair<float, int>>> groups(scales(p, encoded.scale).size());
        for (std::size_t i = 0; i < x.size(); ++i) groups[scale_index(p, shape, i)].emplace_back(x[i], q[i]);
        int out_of_order = 0;
        for (auto& group : groups) {
            std::sort(group.begin(), group.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
            for (std::size_t i = 1; i < group.size(); ++i)
                out_of_order += group[i].second < group[i - 1].second ? 1 : 0;
        }
        CHECK(out_of_order == 0);
        if (!p.symmetric) continue;
        std::vector<float> negated(x);
        for (float& value : negated) value = -value;
        const auto mirrored = encode("int8", p, shape, negated);
        CHECK(mirrored.scale == encoded.scale);
        const auto mirrored_codes = codes(p, mirrored);
        int wrong = 0;
        for (std::size_t i = 0; i < q.size(); ++i) wrong += mirrored_codes[i] != -q[i] || q[i] == -128 ? 1 : 0;
        CHECK(wrong == 0);
    }
}

TEST_CASE("multiplying by a power of two multiplies the scales and leaves the codes") {
    const Shape shape{16, 2, 64};
    std::vector<float> x(shape.elements());
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(random);
    std::vector<float> scaled(x);
    for (float& value : scaled) value *= 8;
    for (const Params& p : all_params({0, 32}, {8})) {
        const auto a = encode("int8", p, shape, x), b = encode("int8", p, shape, scaled);
        if (p.symmetric || p.scale_dtype == DType::f32) CHECK(a.values == b.values);  // f16 zeros may be subnormal
        const auto sa = scales(p, a.scale), sb = scales(p, b.scale);
        if (p.symmetric) {
            for (std::size_t i = 0; i < sa.size(); ++i) CHECK(sb[i] == 8 * sa[i]);
        }
    }
}

TEST_CASE("tokens are independent of each other on the token axis") {
    const Shape shape{33, 2, 80};
    const std::vector<float> x = adversarial(shape, 11);
    const std::size_t row = 2 * 80;
    std::vector<std::size_t> order(shape.tokens);
    for (std::size_t t = 0; t < order.size(); ++t) order[t] = t;
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    std::vector<float> shuffled(x.size());
    for (std::size_t t = 0; t < order.size(); ++t)
        std::copy_n(x.data() + order[t] * row, row, shuffled.data() + t * row);
    for (const Params& p : all_params({0, 32}, {})) {
        const auto a = encode("int8", p, shape, x), b = encode("int8", p, shape, shuffled);
        const std::size_t scale_row = a.scale.size() / shape.tokens;
        for (std::size_t t = 0; t < order.size(); ++t) {
            CHECK(std::equal(b.values.begin() + static_cast<std::ptrdiff_t>(t * row),
                             b.values.begin() + static_cast<std::ptrdiff_t>((t + 1) * row),
                             a.values.begin() + static_cast<std::ptrdiff_t>(order[t] * row)));
            CHECK(std::equal(b.scale.begin() + static_cast<std::ptrdiff_t>(t * scale_row),
                             b.scale.begin() + static_cast<std::ptrdiff_t>((t + 1) * scale_row),
                             a.scale.begin() + static_cast<std::ptrdiff_t>(order[t] * scale_row)));
        }
    }
}

TEST_CASE("ranges of tokens, cut at whole groups, give the bytes of the whole") {
    const Shape shape{70, 2, 80};
    const std::vector<float> x = adversarial(shape, 23);
    for (const Params& p : all_params({0, 32}, {1, 16})) {
        const auto whole = encode("int8", p, shape, x);
        quant::Encoded joined;
        for (std::uint64_t first = 0; first < shape.tokens; first += 16) {
            const Shape range{std::min<std::uint64_t>(16, shape.tokens - first), 2, 80, first};
            const std::vector<float> part(x.begin() + static_cast<std::ptrdiff_t>(first * 160),
                                          x.begin() + static_cast<std::ptrdiff_t>(first * 160 + range.elements()));
            const auto encoded = encode("int8", p, range, part);
            joined.values.insert(joined.values.end(), encoded.values.begin(), encoded.values.end());
            joined.scale.insert(joined.scale.end(), encoded.scale.begin(), encoded.scale.end());
            joined.zero.insert(joined.zero.end(), encoded.zero.begin(), encoded.zero.end());
        }
        CHECK(joined.values == whole.values);
        CHECK(joined.scale == whole.scale);
        CHECK(joined.zero == whole.zero);
        const quant::EncodedBytes bytes = codec("int8").bytes(p, shape);
        CHECK(bytes.values == whole.values.size());
        CHECK(bytes.scale == whole.scale.size());
        CHECK(bytes.zero == whole.zero.size());
    }
}

TEST_CASE("groups of 32 at 8 bits take at most 0.57 of the bytes of f16") {
    const Shape shape{64, 3, 64};
    const std::vector<float> x = adversarial(shape, 1);
    const Params p{Axis::token, 32, true, DType::f16};
    const auto encoded = encode("int8", p, shape, x);
    CHECK(static_cast<double>(encoded.values.size() + encoded.scale.size()) <=
          0.57 * 2 * static_cast<double>(x.size()));
    CHECK(codec("int8").value_dtype(p) == DType::i8);
    const auto s = scales(p, encoded.scale);
    for (std::size_t i = 0; i < x.size(); ++i) {
        if (x[i] != 0) CHECK(s[scale_index(p, shape, i)] > 0);
    }
}
