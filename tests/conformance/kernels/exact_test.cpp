// The ops that are exact: every backend gives the scalar one's bits, at every length and alignment.
#include "inputs.h"

using namespace hetero::kernels;
using namespace hetero::test;

namespace {

constexpr std::size_t kLongest = 2 * 16 + 5;  // over two runs of 16 lanes

// Special values in every lane, random ones between.
Guarded<float> mixed_input(std::size_t n, std::size_t skew, Random& random) {
    Guarded<float> x(n, skew);
    const auto special = special_values();
    for (std::size_t i = 0; i < n; ++i)
        x[i] = random.bits() % 2 ? special[random.bits() % special.size()] : 100 * random.normal();
    return x;
}

template <class Check>
void for_lengths(Check check) {
    Random random(1);
    for (const Ops* ops : runnable_backends())
        for (std::size_t n = 0; n <= kLongest; ++n)
            for (std::size_t skew : {0, 1, 7}) {
                INFO(ops->name, " n ", n, " skew ", skew);
                for (int round = 0; round < 4; ++round) check(*ops, n, skew, random);
            }
}

}  // namespace

TEST_CASE("conversions are exact") {
    for_lengths([](const Ops& ops, std::size_t n, std::size_t skew, Random& random) {
        const auto x = mixed_input(n, skew, random);
        Guarded<std::uint16_t> out(n, skew), expected(n, skew);
        Guarded<float> wide(n, skew), wide_expected(n, skew);
        ops.f32_to_f16(x.data(), out.data(), n);
        scalar().f32_to_f16(x.data(), expected.data(), n);
        CHECK(count_differing(out, expected) == 0);
        ops.f32_to_bf16(x.data(), out.data(), n);
        scalar().f32_to_bf16(x.data(), expected.data(), n);
        CHECK(count_differing(out, expected) == 0);
        CHECK(out.intact());

        for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::uint16_t>(random.bits());
        ops.f16_to_f32(out.data(), wide.data(), n);
        scalar().f16_to_f32(out.data(), wide_expected.data(), n);
        CHECK(count_differing(wide, wide_expected) == 0);
        ops.bf16_to_f32(out.data(), wide.data(), n);
        scalar().bf16_to_f32(out.data(), wide_expected.data(), n);
        CHECK(count_differing(wide, wide_expected) == 0);
        CHECK(wide.intact());
    });
}

TEST_CASE("add is exact") {
    for_lengths([](const Ops& ops, std::size_t n, std::size_t skew, Random& random) {
        const auto x = mixed_input(n, skew, random);
        auto y = mixed_input(n, skew, random);
        auto expected = y;
        ops.add(x.data(), y.data(), n);
        for (std::size_t i = 0; i < n; ++i) expected[i] += x[i];
        CHECK(count_differing(y, expected) == 0);
        CHECK(y.intact());
    });
}

TEST_CASE("mul and scale are exact") {
    for_lengths([](const Ops& ops, std::size_t n, std::size_t skew, Random& random) {
        const auto x = mixed_input(n, skew, random);
        auto y = mixed_input(n, skew, random);
        auto expected = y;
        ops.mul(x.data(), y.data(), n);
        for (std::size_t i = 0; i < n; ++i) expected[i] *= x[i];
        CHECK(count_differing(y, expected) == 0);
        ops.scale(y.data(), 33.94112549695428F, n);
        for (std::size_t i = 0; i < n; ++i) expected[i] *= 33.94112549695428F;
        CHECK(count_differing(y, expected) == 0);
        CHECK(y.intact());
    });
}

TEST_CASE("8-bit quantization is exact, special values included") {
    for_lengths([](const Ops& ops, std::size_t n, std::size_t skew, Random& random) {
        const auto x = mixed_input(n, skew, random);
        for (const float scale : {0.0F, 1.0F, 0.037F, 1e-30F, 3e38F, 1e-40F}) {
            Guarded<std::int8_t> q(n, skew), q_expected(n, skew);
            ops.quantize_i8(x.data(), scale, q.data(), n);
            scalar().quantize_i8(x.data(), scale, q_expected.data(), n);
            CHECK(count_differing(q, q_expected) == 0);
            CHECK(q.intact());
        }
    });
}

TEST_CASE("8-bit quantization rounds half to even and clamps") {
    const std::vector<float> x = {0.5F, 1.5F, 2.5F, -0.5F, -1.5F, 126.5F, 127.5F, 1e9F, -127.5F, -1e9F};
    const std::vector<std::int8_t> expected = {0, 2, 2, 0, -2, 126, 127, 127, -127, -127};
    for (const Ops* ops : runnable_backends()) {
        INFO(ops->name);
        std::vector<std::int8_t> q(x.size());
        ops->quantize_i8(x.data(), 1, q.data(), x.size());
        CHECK(q == expected);
        ops->quantize_i8(x.data(), 0, q.data(), x.size());
        CHECK(q == std::vector<std::int8_t>(x.size(), 0));
    }
}

TEST_CASE("min_max finds both, and refuses what is not finite") {
    Random random(2);
    for (const Ops* ops : runnable_backends())
        for (std::size_t n = 1; n <= kLongest; ++n) {
            INFO(ops->name, " n ", n);
            Guarded<float> x(n, n % 5);
            fill_normal(x, random);
            float low = 0, high = 0;
            for (std::size_t place = 0; place < n; ++place) {
                const float kept = x[place];
                for (const float extreme : {-50.0F, 50.0F, 3.4e38F, -3.4e38F}) {
                    x[place] = extreme;
                    REQUIRE(ops->min_max(x.data(), n, &low, &high));
                    CHECK((extreme < 0 ? low : high) == extreme);
                    CHECK(low <= high);
                }
                for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
                    x[place] = bad;
                    CHECK_FALSE(ops->min_max(x.data(), n, &low, &high));
                }
                x[place] = kept;
            }
        }
}

TEST_CASE("dequantize is exact for random blocks of every format") {
    Random random(3);
    for (const WeightType& type : weight_types())
        for (const Ops* ops : runnable_backends()) {
            INFO(dtype_info(type.type).name, " on ", ops->name);
            const std::size_t block = dtype_info(type.type).block_elems;
            for (std::size_t blocks = 0; blocks <= (block == 1 ? kLongest : 5); ++blocks)
                for (std::size_t skew : {0, 1, 3}) {
                    const std::size_t n = blocks * block;
                    const auto weights = random_weights(type, n, random);
                    const std::size_t unit = type.type == DType::f32 ? 4 : type.type == DType::i8 ? 1 : 2;  // the element's
                    Guarded<std::uint8_t> raw(weights.size(), skew * unit);
                    for (std::size_t i = 0; i < weights.size(); ++i) raw[i] = weights[i];
                    Guarded<float> values(n, skew);
                    ops->dequantize(type.type, raw.data(), values.data(), n);
                    CHECK(count_differing(values, dequantized(type.type, weights, n)) == 0);
                    CHECK(values.intact());
                }
        }
}

TEST_CASE("dequantize is exact for extreme scales") {
    Random random(4);
    for (const WeightType& type : weight_types()) {
        if (type.half_offsets.empty()) continue;
        const auto& info = dtype_info(type.type);
        for (const std::uint16_t half : {0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0x7e01}) {
            auto weights = random_weights(type, info.block_elems, random);
            std::memcpy(weights.data() + type.half_offsets[0], &half, sizeof half);
            for (const Ops* ops : runnable_backends()) {
                INFO(info.name, " scale bits ", half, " on ", ops->name);
                std::vector<float> values(info.block_elems);
                ops->dequantize(type.type, weights.data(), values.data(), values.size());
                CHECK(count_differing(values, dequantized(type.type, weights, values.size())) == 0);
            }
        }
    }
}

TEST_CASE("rope is the scalar one, in place or not, for both pairings") {
    Random random(5);
    for (const Ops* ops : runnable_backends())
        for (std::size_t head_dim : {2, 16, 20, 64, 80, 128, 130, 1200})
            for (std::size_t n_pairs : {std::size_t{1}, head_dim / 4, head_dim / 2})
                for (const auto pairing : {RopePairing::half_split, RopePairing::interleaved}) {
                    if (n_pairs == 0) continue;
                    INFO(ops->name, " head_dim ", head_dim, " pairs ", n_pairs, " pairing ", static_cast<int>(pairing));
                    constexpr std::size_t kHeads = 3, kPosition = 2;
                    Guarded<float> x(kHeads * head_dim, 1), y(kHeads * head_dim, 3), expected(kHeads * head_dim);
                    std::vector<float> cos(3 * n_pairs), sin(3 * n_pairs);
                    fill_normal(x, random);
                    fill_normal(cos, random);
                    fill_normal(sin, random);
                    const RopeTable table{cos.data(), sin.data(), n_pairs};
                    // Double precision, straight from the definition.
                    std::size_t far = 0;
                    ops->rope(x.data(), y.data(), kHeads, head_dim, table, kPosition, pairing);
                    for (std::size_t h = 0; h < kHeads; ++h)
                        for (std::size_t i = 0; i < n_pairs; ++i) {
                            const float* head = x.data() + h * head_dim;
                            const bool half = pairing == RopePairing::half_split;
                            const double a = head[half ? i : 2 * i], b = head[half ? i + n_pairs : 2 * i + 1];
                            const double c = cos[kPosition * n_pairs + i], s = sin[kPosition * n_pairs + i];
                            const double bound =
                                0x1p-23 * (std::fabs(a) + std::fabs(b)) * (std::fabs(c) + std::fabs(s));
                            far += std::fabs(y[h * head_dim + i] - (a * c - b * s)) > bound;
                            far += std::fabs(y[h * head_dim + i + n_pairs] - (b * c + a * s)) > bound;
                        }
                    for (std::size_t h = 0; h < kHeads; ++h)
                        for (std::size_t i = 2 * n_pairs; i < head_dim; ++i)
                            far += y[h * head_dim + i] != x[h * head_dim + i];
                    CHECK(far == 0);
                    scalar().rope(x.data(), expected.data(), kHeads, head_dim, table, kPosition, pairing);
                    CHECK(count_differing(y, expected) == 0);
                    ops->rope(x.data(), x.data(), kHeads, head_dim, table, kPosition, pairing);
                    CHECK(count_differing(x, expected) == 0);
                    CHECK(x.intact());
                    CHECK(y.intact());
                }
}
