// Codes of the KV state: every backend gives the bits of the scalar one.
#include <string>

#include "conformance/kernels/inputs.h"

using namespace hetero;
using namespace hetero::test;
using kernels::Fp8;

namespace {

constexpr std::size_t kLongest = 133;

// Quotients at the middle of two codes and a rounding beside it, for many scales.
std::vector<float> near_ties(float scale, Random& random) {
    std::vector<float> x;
    for (int code = -128; code <= 256; ++code) {
        const float tie = (static_cast<float>(code) + 0.5F) * scale;
        x.push_back(tie);
        x.push_back(std::nextafter(tie, INFINITY));
        x.push_back(std::nextafter(tie, -INFINITY));
        x.push_back(std::nextafter(x[x.size() - 2], INFINITY));
        x.push_back((static_cast<float>(code) + static_cast<float>(random.uniform(0, 1))) * scale);
    }
    return x;
}

}  // namespace

TEST_CASE("8-bit codes beside the middle of two integers are those of the division") {
    Random random(11);
    std::vector<float> scales{1.0F / 3, 1.0F / 127, 0.1F, 65504.0F, 0x1p-24F, 0x1p-130F, 1e-38F, 3e37F, 0x1p125F};
    for (int i = 0; i < 200; ++i) scales.push_back(std::ldexp(static_cast<float>(random.uniform(1, 2)), i % 60 - 30));
    for (const float scale : scales) {
        const std::vector<float> x = near_ties(scale, random);
        std::vector<std::int8_t> q(x.size()), want_q(x.size());
        scalar().quantize_i8(x.data(), scale, want_q.data(), x.size());
        for (const Ops* ops : runnable_backends()) {
            INFO(ops->name, " scale ", scale);
            ops->quantize_i8(x.data(), scale, q.data(), x.size());
            CHECK(count_differing(q, want_q) == 0);
        }
    }
}

TEST_CASE("packing is one string of bits, lowest first, and comes back") {
    // 4 bits: the even index in the low half. 3 bits: the third code crosses a byte.
    const std::vector<std::uint8_t> nibbles{0, 1, 2, 2, 15}, triples{1, 2, 7, 0, 5};
    for (const Ops* ops : runnable_backends()) {
        INFO(ops->name);
        std::vector<std::uint8_t> packed(3);
        ops->pack_bits(4, nibbles.data(), packed.data(), 5);
        CHECK(packed == std::vector<std::uint8_t>{0x10, 0x22, 0x0F});
        packed.resize(2);
        ops->pack_bits(3, triples.data(), packed.data(), 5);
        CHECK(packed == std::vector<std::uint8_t>{0xD1, 0x51});
    }
    Random random(13);
    for (const Ops* ops : runnable_backends())
        for (int bits = 2; bits <= 7; ++bits)
            for (std::size_t n = 0; n <= kLongest; ++n) {
                INFO(ops->name, " bits ", bits, " n ", n);
                const std::size_t size = (n * static_cast<std::size_t>(bits) + 7) / 8;
                Guarded<std::uint8_t> codes(n, 3), packed(size, 1), want(size), back(n, 2);
                for (std::size_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(random.bits());
                ops->pack_bits(bits, codes.data(), packed.data(), n);
                scalar().pack_bits(bits, codes.data(), want.data(), n);
                CHECK(count_differing(packed, want) == 0);
                CHECK(packed.intact());
                const unsigned mask = (1U << bits) - 1, sign = 1U << (bits - 1);
                std::size_t wrong = 0;
                ops->unpack_bits(bits, false, packed.data(), back.data(), n);
                for (std::size_t i = 0; i < n; ++i) wrong += back[i] != (codes[i] & mask);
                ops->unpack_bits(bits, true, packed.data(), back.data(), n);
                for (std::size_t i = 0; i < n; ++i)
                    wrong += back[i] != static_cast<std::uint8_t>(((codes[i] & mask) ^ sign) - sign);
                CHECK(wrong == 0);
                CHECK(back.intact());
            }
}

TEST_CASE("the Hadamard transform: by hand, by the matrix, and bit for bit") {
    for (const Ops* ops : runnable_backends()) {
        std::vector<float> x{1, 2, 3, 4, 8, 0, 0, 0};
        ops->hadamard(x.data(), x.data(), 2, 4);
        CHECK(x == std::vector<float>{5, -1, -2, 0, 4, 4, 4, 4});
    }
    Random random(14);
    for (std::size_t n = 1; n <= 1024; n *= 2)
        for (const std::size_t blocks : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
            Guarded<float> x(blocks * n, 1), want(blocks * n);
            fill_normal(x, random);
            scalar().hadamard(x.data(), want.data(), blocks, n);
            std::size_t far = 0;
            for (std::size_t b = 0; b < blocks; ++b)
                for (std::size_t i = 0; i < n; ++i) {
                    double sum = 0, size = 0;
                    for (std::size_t j = 0; j < n; ++j) {
                        const bool odd = __builtin_parityll(i & j) != 0;
                        sum += (odd ? -1.0 : 1.0) * x[b * n + j];
                        size += std::fabs(x[b * n + j]);
                    }
                    const double root = std::sqrt(static_cast<double>(n));
                    far += std::fabs(want[b * n + i] - sum / root) > 12 * 0x1p-24 * size / root;
                }
            CHECK(far == 0);
            for (const Ops* ops : runnable_backends()) {
                INFO(ops->name, " n ", n, " blocks ", blocks);
                Guarded<float> y(blocks * n, 3);
                ops->hadamard(x.data(), y.data(), blocks, n);
                CHECK(count_differing(y, want) == 0);
                CHECK(y.intact());
                Guarded<float> in_place(blocks * n, 2);
                for (std::size_t i = 0; i < x.size(); ++i) in_place[i] = x[i];
                ops->hadamard(in_place.data(), in_place.data(), blocks, n);
                CHECK(count_differing(in_place, want) == 0);
            }
        }
}

TEST_CASE("8-bit floats: ties, subnormals, overflow and every 16-bit pattern") {
    Random random(15);
    std::vector<float> x = special_values();
    for (std::uint32_t high = 0; high < 65536; ++high)
        for (const std::uint32_t low : {0x0000U, 0x0001U, 0x8000U, 0xFFFFU})
            x.push_back(std::bit_cast<float>(high << 16 | low));
    for (int i = 0; i < 1000; ++i) x.push_back(std::ldexp(random.normal(), i % 40 - 25));
    for (const Fp8 format : {Fp8::e4m3fn, Fp8::e4m3fnuz, Fp8::e5m2})
        for (const float scale : {1.0F, 0.0F, 0.0371F, 1e-5F, 65504.0F}) {
            std::vector<std::uint8_t> want(x.size()), got(x.size());
            const auto row_of = [&](std::size_t begin, std::size_t n) {
                return kernels::KvValues{DType::f32, x.data() + begin, 1, n, n};
            };
            scalar().quantize_fp8(format, row_of(0, x.size()), &scale, want.data(), x.size(), nullptr);
            for (const Ops* ops : runnable_backends()) {
                INFO(ops->name, " format ", static_cast<int>(format), " scale ", scale);
                ops->quantize_fp8(format, row_of(0, x.size()), &scale, got.data(), x.size(), nullptr);
                CHECK(count_differing(got, want) == 0);
                // Runs without numbers beyond the finite ones are looked at sixteen and more at a time.
                std::size_t wrong = 0;
                for (std::size_t begin = 0; begin < x.size(); begin += 150) {
                    Guarded<std::uint8_t> part(std::min<std::size_t>(150, x.size() - begin), 3);
                    ops->quantize_fp8(format, row_of(begin, part.size()), &scale, part.data(), part.size(), nullptr);
                    for (std::size_t i = 0; i < part.size(); ++i) wrong += part[i] != want[begin + i];
                    CHECK(part.intact());
                }
                CHECK(wrong == 0);
            }
        }
}

TEST_CASE("ggml's blocks: ties, zeros of both signs, equal magnitudes, scales that f16 cannot hold") {
    Random random(16);
    const auto value = [&](std::size_t i) {
        switch (i / 32 % 8) {
            case 0:
                return i % 2 == 0 ? 0.0F : -0.0F;
            case 1:
                return static_cast<float>(static_cast<int>(i % 32) - 16) * 0.5F;  // ties, and -8 before 8
            case 2:
                return i % 32 == 3 ? 127.0F : static_cast<float>(i % 7) + 0.5F;  // the scale is 1
            case 3:
                return random.normal() * 1e-7F;  // a subnormal scale
            case 4:
                return random.normal() * 1e-41F;  // whose reciprocal is infinite
            case 5:
                return i % 32 == 9 ? 3.0F : i % 32 == 20 ? -3.0F : random.normal() * 0.1F;
            case 6:
                return std::fabs(random.normal());
            default:
                return random.normal() * 100;
        }
    };
    for (const auto& [type, bytes] : {std::pair{DType::q8_0, 34}, {DType::q4_0, 18}, {DType::q4_1, 20}})
        for (const std::size_t blocks : {0, 1, 15, 16, 17, 32, 64, 100}) {
            Guarded<float> x(32 * blocks, 1);
            for (std::size_t i = 0; i < x.size(); ++i) x[i] = value(i);
            const std::size_t size = blocks * static_cast<std::size_t>(bytes);
            Guarded<std::uint8_t> want(size, 1), got(size, 3);
            REQUIRE(scalar().quantize_blocks(type, x.data(), x.size(), want.data()));
            for (const Ops* ops : runnable_backends()) {
                INFO(ops->name, " type ", static_cast<int>(type), " blocks ", blocks);
                CHECK(ops->quantize_blocks(type, x.data(), x.size(), got.data()));
                CHECK(count_differing(got, want) == 0);
                CHECK(got.intact());
                for (std::size_t at = 5; at < x.size(); at += 167) {
                    const float kept = x[at];
                    x[at] = type == DType::q8_0 ? 65519.0F * 127 : type == DType::q4_0 ? -65519.0F * 8 : -65519.0F;
                    CHECK(ops->quantize_blocks(type, x.data(), x.size(), got.data()));
                    x[at] *= 1.001F;
                    CHECK_FALSE(ops->quantize_blocks(type, x.data(), x.size(), got.data()));
                    x[at] = kept;
                }
            }
        }
}
