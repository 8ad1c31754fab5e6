// Columns of unlike widths: who gets the bits, codes and values. Every backend gives the bits of the scalar one, from
// and to every type; the scalar one's packing is held to a definition written out here.
#include "conformance/kernels/kv_block.h"

using namespace hetero;
using namespace hetero::test;

namespace {

std::vector<std::size_t> column_counts() {
    std::vector<std::size_t> out = lengths();
    for (const std::size_t n : {std::size_t{128}, std::size_t{512}, std::size_t{520}}) out.push_back(n);
    return out;
}

struct Widths {
    explicit Widths(std::size_t n) : width(n + 1, 0xa5), step(n) {}
    std::vector<std::uint8_t> width;  // one more, that is not to be written
    Guarded<float> step;
};

std::vector<float> ranges(Random& random, std::size_t n, int kind) {
    std::vector<float> range(n);
    for (std::size_t c = 0; c < n; ++c) {
        const auto exponent = static_cast<int>(random.bits() % 13);
        switch (kind) {
            case 0:  // alike
                range[c] = 1 + 0.25F * std::fabs(random.normal());
                break;
            case 1:  // equal, so that the order of the columns decides
                range[c] = 3;
                break;
            case 2:  // octaves apart, many steps equal
                range[c] = std::ldexp(1.0F, exponent - 6);
                break;
            case 3:  // none but some
                range[c] = random.bits() % 4 == 0 ? std::fabs(random.normal()) : 0;
                break;
            case 4:  // a few far above the others
                range[c] = std::fabs(random.normal()) * (random.bits() % 16 == 0 ? 1000.0F : 1.0F);
                break;
            case 5:  // the whole of f16
                range[c] = std::ldexp(1.0F + 0.5F * static_cast<float>(random.bits() % 2),
                                      static_cast<int>(random.bits() % 40) - 24);
                break;
            default:
                range[c] = 0;
        }
    }
    return range;
}

}  // namespace

TEST_CASE("every backend gives the bits to the same columns") {
    Random random(71);
    for (const Ops* ops : runnable_backends())
        for (const std::size_t n : column_counts())
            for (int kind = 0; kind <= 6; ++kind)
                for (const int mean : {2, 3, 4, 5, 6, 7, 8, 9}) {
                    if (n > 80 && mean % 4 != 0) continue;
                    const std::vector<float> range = ranges(random, n, kind);
                    Widths want(n), found(n);
                    scalar().fill_widths(range.data(), n, mean, want.width.data(), want.step.data());
                    ops->fill_widths(range.data(), n, mean, found.width.data(), found.step.data());
                    INFO(ops->name, " n ", n, " kind ", kind, " mean ", mean);
                    CHECK(count_differing(want.width, found.width) == 0);
                    CHECK(count_differing(want.step, found.step) == 0);
                    CHECK((found.width[n] == 0xa5 && found.step.intact()));
                    std::size_t bits = 0;
                    for (std::size_t c = 0; c < n; ++c) {
                        bits += found.width[c];
                        CHECK((found.width[c] >= 1 && found.width[c] <= 12));
                    }
                    CHECK(bits == n * static_cast<std::size_t>(mean));
                }
}

TEST_CASE("codes of unlike widths, and back") {
    Random random(72);
    const std::size_t rows = 7;
    for (const Ops* ops : runnable_backends())
        for (const std::size_t n : column_counts())
            for (const DType type : kTypes)
                for (const int mean : {2, 4, 8, 9}) {
                    if (n > 40 && mean != 2 + static_cast<int>(n % 4) * 2 && n % 64 != 0) continue;
                    INFO(ops->name, " n ", n, " type ", static_cast<int>(type), " mean ", mean);
                    const int kind = static_cast<int>(random.bits() % 7);
                    std::vector<float> range = ranges(random, n, kind), zero(n);
                    for (float& z : zero) z = std::round(8 * random.normal()) / 4;
                    Widths widths(n);
                    scalar().fill_widths(range.data(), n, mean, widths.width.data(), widths.step.data());
                    // Codes, middles of two of them, and what is right beside the middles.
                    Block x(type, rows, n, 5, 1);
                    x.fill([&](std::size_t row, std::size_t c) {
                        const auto top = static_cast<float>((1 << widths.width[c]) - 1);
                        const float code = std::floor(static_cast<float>(random.uniform(0, 1)) * top);
                        const float beside = row % 3 == 0 ? 0 : row % 3 == 1 ? 0.5F : 0.4999F;
                        return std::min(code + beside, top) * widths.step[c] + zero[c];
                    });
                    // Rounded to 16 bits a value may lie outside: bring those back to what fits.
                    for (std::size_t row = 0; row < rows; ++row)
                        for (std::size_t c = 0; c < n; ++c) {
                            const float value = x.get(row, c);
                            if (value < zero[c] || value - zero[c] > range[c]) x.set(row * x.stride + c, zero[c]);
                        }
                    const std::size_t row_bytes = (n * static_cast<std::size_t>(mean) + 31) / 32 * 4, gap = 3;
                    Guarded<std::uint8_t> want(rows * (row_bytes + gap)), found(want.size(), 1);
                    float want_error = 0, error = 0;
                    scalar().quantize_widths(x.values(), widths.step.data(), zero.data(), widths.width.data(),
                                             want.data(), row_bytes + gap, row_bytes, &want_error);
                    ops->quantize_widths(x.values(), widths.step.data(), zero.data(), widths.width.data(), found.data(),
                                         row_bytes + gap, row_bytes, &error);
                    CHECK(count_differing(want, found) == 0);
                    CHECK(same(error, want_error));
                    CHECK(found.intact());
                    ops->quantize_widths(x.values(), widths.step.data(), zero.data(), widths.width.data(), found.data(),
                                         row_bytes + gap, row_bytes, nullptr);
                    CHECK(count_differing(want, found) == 0);

                    // The definition: bit i of a row is bit i of the codes, one after the other.
                    for (std::size_t row = 0; row < rows; ++row) {
                        std::size_t at = 0;
                        bool right = true;
                        for (std::size_t c = 0; c < n; ++c) {
                            const double quotient =
                                widths.step[c] == 0 ? 0 : (x.get(row, c) - zero[c]) / widths.step[c];
                            const auto code = static_cast<unsigned>(std::nearbyint(quotient));
                            for (int bit = 0; bit < widths.width[c]; ++bit, ++at) {
                                const unsigned stored = want[row * (row_bytes + gap) + at / 8] >> at % 8 & 1U;
                                right = right && stored == (code >> bit & 1U);
                            }
                        }
                        CHECK(right);
                    }

                    for (const DType to : kTypes) {
                        Block back(to, rows, n, 5, 1), want_back(to, rows, n, 5, 1);
                        want_error = error = 0;
                        const bool want_fits = scalar().dequantize_widths(
                            want.data(), row_bytes + gap, row_bytes, widths.step.data(), zero.data(),
                            widths.width.data(), want_back.output(), &want_error);
                        const bool fits =
                            ops->dequantize_widths(found.data(), row_bytes + gap, row_bytes, widths.step.data(),
                                                   zero.data(), widths.width.data(), back.output(), &error);
                        CHECK(fits == want_fits);
                        CHECK(same(error, want_error));
                        CHECK(count_differing(back.bytes, want_back.bytes) == 0);
                        CHECK(back.bytes.intact());
                    }
                }
}

TEST_CASE("a value that is infinite in the output's type is told") {
    for (const Ops* ops : runnable_backends()) {
        constexpr std::size_t n = 64;
        std::vector<float> step(n, 60000.0F), zero(n, 60000.0F);
        std::vector<std::uint8_t> width(n, 2), q(16, 0);
        Block out(DType::f16, 1, n, 0, 0);
        CHECK(ops->dequantize_widths(q.data(), 16, 16, step.data(), zero.data(), width.data(), out.output(), nullptr));
        q[9] = 4;
        CHECK_FALSE(
            ops->dequantize_widths(q.data(), 16, 16, step.data(), zero.data(), width.data(), out.output(), nullptr));
    }
}
