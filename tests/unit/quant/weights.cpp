// Encoders of weight formats: ggml's own codes, error bounds, values that no format can hold.
#include <cmath>
#include <limits>

#include "kernels/api/ops.h"
#include "quant/weights/weight_format.h"
#include "support/golden.h"
#include "unit/quant/support.h"

namespace {

using namespace hetero;
using namespace hetero::test;
using quant::WeightFormat;

const WeightFormat& format_of(std::string_view name) {
    const WeightFormat* format = quant::find_weight_format(name);
    REQUIRE(format != nullptr);
    return *format;
}

struct EncodedRow {
    std::vector<std::byte> bytes;
    float scale = 1;
};

EncodedRow encode(const WeightFormat& format, const std::vector<float>& row) {
    EncodedRow out;
    out.bytes.resize(kernels::dtype_bytes(format.dtype(), row.size()));
    const quant::RowProblem problem = format.encode(row, out.bytes.data(), &out.scale);
    REQUIRE(problem.kind == quant::RowProblem::Kind::none);
    return out;
}

std::vector<float> decode(const WeightFormat& format, const EncodedRow& encoded, std::size_t n) {
    std::vector<float> values(n);
    kernels::ops().dequantize(format.dtype(), encoded.bytes.data(), values.data(), n);
    if (format.has_row_scale()) kernels::ops().scale(values.data(), encoded.scale, n);
    return values;
}

double squared_error(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
    return sum;
}

// The rows that the goldens were quantized from.
std::vector<std::vector<float>> source_rows(const Golden& golden) {
    const auto values = golden.get<float>("src.f32");
    const auto shape = golden.shape("src.f32");
    std::vector<std::vector<float>> rows;
    for (std::size_t row = 0; row < shape[0]; ++row) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * shape[1]);
        rows.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(shape[1]));
    }
    return rows;
}

// Numbers of about the size of weights, with outliers, the same in every run.
std::vector<float> weights(std::size_t n, std::uint32_t seed) {
    std::vector<float> values(n);
    std::uint32_t state = seed;
    for (float& value : values) {
        double sum = 0;
        for (int i = 0; i < 4; ++i) {
            state = state * 1664525U + 1013904223U;
            sum += static_cast<double>(state >> 8) / (1 << 24) - 0.5;
        }
        value = static_cast<float>(sum * 0.04 * ((state & 0xff00) == 0 ? 20 : 1));
    }
    return values;
}

std::uint16_t half_at(const std::byte* at) {
    std::uint16_t half = 0;
    std::memcpy(&half, at, sizeof half);
    return half;
}
double from_half(std::uint16_t half) {
    float value = 0;
    kernels::ops().f16_to_f32(&half, &value, 1);
    return value;
}

}  // namespace

TEST_CASE("codes are those of ggml's reference quantizer") {
    const Golden golden("golden/gguf/dequant.safetensors");
    const auto rows = source_rows(golden);
    const std::pair<const char*, const char*> formats[] = {
        {"f16", "F16"}, {"bf16", "BF16"}, {"q8_0", "Q8_0"}, {"q4_0", "Q4_0"}, {"q4_1", "Q4_1"}};
    for (const auto& [ours, theirs] : formats) {
        CAPTURE(ours);
        const auto expected = golden.get<std::uint8_t>(std::string(theirs) + ".raw");
        std::vector<std::uint8_t> got;
        for (const auto& row : rows) {
            for (const std::byte byte : encode(format_of(ours), row).bytes)
                got.push_back(static_cast<std::uint8_t>(byte));
        }
        REQUIRE(got.size() == expected.size());
        std::size_t differing = 0;
        for (std::size_t i = 0; i < got.size(); ++i) differing += got[i] != expected[i];
        CHECK(differing == 0);
    }
}

TEST_CASE("q4_k leaves no more error than ggml's reference quantizer") {
    const Golden golden("golden/gguf/dequant.safetensors");
    const auto rows = source_rows(golden);
    const auto reference = golden.get<float>("Q4_K.f32");
    const WeightFormat& format = format_of("q4_k");
    for (std::size_t row = 0; row < rows.size(); ++row) {
        const std::size_t n = rows[row].size();
        const auto begin = reference.begin() + static_cast<std::ptrdiff_t>(row * n);
        const std::vector<float> theirs(begin, begin + static_cast<std::ptrdiff_t>(n));
        const double ours = squared_error(decode(format, encode(format, rows[row]), n), rows[row]);
        CAPTURE(row);
        MESSAGE("row ", row, ": squared error ", ours, ", reference ", squared_error(theirs, rows[row]));
        CHECK(ours <= squared_error(theirs, rows[row]));
    }
}

TEST_CASE("a value is off by half a step at most") {
    const std::size_t n = 4096;
    const std::vector<float> x = weights(n, 7);
    const auto check = [&](std::string_view name, std::size_t block, std::size_t bytes, double extra_low,
                           double extra_high) {
        const WeightFormat& format = format_of(name);
        const EncodedRow encoded = encode(format, x);
        const std::vector<float> y = decode(format, encoded, n);
        for (std::size_t i = 0; i < n; ++i) {
            CAPTURE(name);
            CAPTURE(i);
            const double step = std::fabs(from_half(half_at(encoded.bytes.data() + i / block * bytes)));
            const double error = static_cast<double>(y[i]) - x[i];
            // Codes were chosen with the step before it was rounded to 16 bits (2^-11), up to 127 steps away; and so
            // was the offset of q4_1.
            const double rounding = std::fabs(static_cast<double>(x[i])) * 0x1p-10 + 8 * step * 0x1p-10;
            REQUIRE(error >= -step * (0.5 + extra_low) - rounding);
            REQUIRE(error <= step * (0.5 + extra_high) + rounding);
        }
    };
    check("q8_0", 32, 34, 0, 0);
    check("q4_1", 32, 20, 0, 0);
    // 16 codes from -8 to 7: on the side away from the extreme value, 8 steps become 7.
    check("q4_0", 32, 18, 0.5, 0.5);
    const WeightFormat& channel = format_of("int8-channel");
    const EncodedRow encoded = encode(channel, x);
    const std::vector<float> y = decode(channel, encoded, n);
    float largest = 0;
    for (const float value : x) largest = std::max(largest, std::fabs(value));
    CHECK(encoded.scale == largest / 127);
    for (std::size_t i = 0; i < n; ++i) {
        REQUIRE(std::fabs(static_cast<double>(y[i]) - x[i]) <= 0.5 * encoded.scale * (1 + 0x1p-20));
    }
}

TEST_CASE("16-bit floats that become f32 and 16-bit again keep their bits") {
    std::vector<std::uint16_t> halves;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        if ((bits & 0x7c00) != 0x7c00) halves.push_back(static_cast<std::uint16_t>(bits));
    }
    std::vector<float> values(halves.size());
    kernels::ops().f16_to_f32(halves.data(), values.data(), halves.size());
    const EncodedRow encoded = encode(format_of("f16"), values);
    CHECK(std::memcmp(encoded.bytes.data(), halves.data(), encoded.bytes.size()) == 0);
}

TEST_CASE("zeros, and numbers too small for any scale, come back as zeros") {
    for (const WeightFormat* format : quant::weight_formats()) {
        CAPTURE(format->name());
        for (const float tiny : {0.0F, 1e-45F, -1e-39F, 1e-41F}) {
            std::vector<float> row(256, tiny);
            row[3] = -tiny;
            float largest = 0;
            for (const float value : decode(*format, encode(*format, row), row.size())) {
                largest = std::max(largest, std::fabs(value));
            }
            CHECK(largest <= std::fabs(tiny) * 1.02F);  // bf16 keeps such numbers, to 8 bits
        }
    }
}

TEST_CASE("what a format cannot hold is a problem at its place") {
    using Kind = quant::RowProblem::Kind;
    std::vector<std::byte> out(4096);
    float scale = 0;
    for (const WeightFormat* format : quant::weight_formats()) {
        CAPTURE(format->name());
        for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
            for (const std::size_t place : {std::size_t{0}, std::size_t{300}, std::size_t{511}}) {
                std::vector<float> row = weights(512, 3);
                row[place] = bad;
                const quant::RowProblem problem = format->encode(row, out.data(), &scale);
                CHECK(problem.kind == Kind::not_finite);
                CHECK(problem.index == place);
            }
        }
    }
    std::vector<float> row = weights(512, 3);
    row[300] = 65520;  // the first number that becomes infinite
    CHECK(format_of("f16").encode(row, out.data(), &scale).kind == Kind::overflow);
    CHECK(format_of("f16").encode(row, out.data(), &scale).index == 300);
    row[300] = std::nextafter(65520.0F, 0.0F);
    CHECK(format_of("f16").encode(row, out.data(), &scale).kind == Kind::none);
    row[300] = std::numeric_limits<float>::max();
    CHECK(format_of("f32").encode(row, out.data(), &scale).kind == Kind::none);
    CHECK(format_of("int8-channel").encode(row, out.data(), &scale).kind == Kind::none);
    for (const char* name : {"q8_0", "q4_0", "q4_1", "q4_k"}) {
        CAPTURE(name);
        const quant::RowProblem problem = format_of(name).encode(row, out.data(), &scale);
        CHECK(problem.kind == Kind::overflow);
        CHECK(problem.index / 256 == 1);
    }
}

// Blocks of 32 are stored as weights and as K or V; each of the two paths is held to bytes that follow from the
// formats.
TEST_CASE("the smallest, the largest and both zeros in blocks of 32, as weights and in a KV state") {
    using Bytes = std::vector<std::uint8_t>;
    const auto expect = [](const std::string& name, const std::vector<float>& x, const Bytes& head,
                           const Bytes& codes) {
        CAPTURE(name);
        CAPTURE(x[0]);
        Bytes expected = head;
        for (std::size_t i = 0; expected.size() < kernels::dtype_bytes(format_of(name).dtype(), 32); ++i)
            expected.push_back(codes[i % codes.size()]);
        const auto as_weights = encode(format_of(name), x).bytes;
        const auto as_kv = hetero::test::encode("compat:" + name, {}, {1, 1, 32}, x).values;
        REQUIRE(as_weights.size() == expected.size());
        CHECK(std::memcmp(as_weights.data(), expected.data(), expected.size()) == 0);
        CHECK(as_kv == as_weights);
    };
    const auto alternating = [](float even, float odd) {
        std::vector<float> x(32, even);
        for (std::size_t i = 1; i < 32; i += 2) x[i] = odd;
        return x;
    };
    const float least = std::numeric_limits<float>::denorm_min();
    for (const float tiny : {least, 100 * least, 0x1p-130F}) {  // the reciprocal of each scale is infinite
        const auto x = alternating(tiny, -tiny);
        expect("q8_0", x, {0, 0}, {0});
        expect("q4_0", x, {0, 0x80}, {0x88});
        expect("q4_1", x, {0, 0, 0, 0x80}, {0});
    }
    // Scales that f16 rounds to 0, but whose reciprocal is finite: codes as of any other block.
    const auto small = alternating(0x1p-100F, -0x1p-100F);
    expect("q8_0", small, {0, 0}, {127, 0x81});
    expect("q4_0", small, {0, 0x80}, {0x00, 0xff});
    expect("q4_1", small, {0, 0, 0, 0x80}, {0xff, 0x00});
    // Of equal extremes the first counts.
    std::vector<float> zeros(32);
    zeros[31] = -0.0F;
    expect("q8_0", zeros, {0, 0}, {0});
    expect("q4_0", zeros, {0, 0x80}, {0x88});
    expect("q4_1", zeros, {0, 0, 0, 0}, {0});
    // Scales beyond f16; max - min of the first is beyond f32 too.
    for (const float huge : {std::numeric_limits<float>::max(), 3e38F, 1e30F, 0x1p24F}) {
        for (const std::string name : {"q8_0", "q4_0", "q4_1"}) {
            CAPTURE(name);
            CAPTURE(huge);
            const auto x = alternating(huge, -huge);
            std::vector<std::byte> out(64);
            const quant::RowProblem problem = format_of(name).encode(x, out.data(), nullptr);
            CHECK(problem.kind == quant::RowProblem::Kind::overflow);
            CHECK(problem.index == 0);
            CHECK(contains(refusal("compat:" + name, {}, {1, 1, 32}, x), "beyond f16"));
        }
    }
}
